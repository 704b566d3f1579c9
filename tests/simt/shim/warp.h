// __syncthreads and __syncwarp, shuffles, votes, matches and reductions.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simt/thread_ops.h"

namespace aegis::simt {

/// What CUDA's shuffles and matches take without a conversion.
template <class T>
concept Shuffled = std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

template <Shuffled T>
uint64_t to_bits(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <Shuffled T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <Shuffled T>
T shuffle(WarpOp op, unsigned mask, T value, unsigned argument, int width, const Where& where) {
  const WarpRequest request{op, mask, to_bits(value), argument, static_cast<uint32_t>(width)};
  return from_bits<T>(warp_op(request, where).value);
}

}  // namespace aegis::simt

#define AEGIS_SIMT_HERE aegis::simt::Where where = aegis::simt::Where::current()

inline void __syncthreads(AEGIS_SIMT_HERE) { aegis::simt::barrier(false, where); }
inline int __syncthreads_count(int predicate, AEGIS_SIMT_HERE) {
  return aegis::simt::barrier(predicate != 0, where);
}
inline int __syncthreads_or(int predicate, AEGIS_SIMT_HERE) {
  return aegis::simt::barrier(predicate != 0, where) != 0;
}
inline int __syncthreads_and(int predicate, AEGIS_SIMT_HERE) {
  return aegis::simt::barrier(predicate == 0, where) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, AEGIS_SIMT_HERE) {
  aegis::simt::warp_op({aegis::simt::WarpOp::sync, mask}, where);
}

#define AEGIS_SIMT_SHUFFLE(name, op, Argument)                                         \
  template <aegis::simt::Shuffled T>                                                   \
  T name(unsigned mask, T value, Argument argument, int width = 32, AEGIS_SIMT_HERE) { \
    return aegis::simt::shuffle(aegis::simt::WarpOp::op, mask, value,                  \
                                static_cast<unsigned>(argument), width, where);        \
  }
AEGIS_SIMT_SHUFFLE(__shfl_sync, shuffle, int)
AEGIS_SIMT_SHUFFLE(__shfl_up_sync, shuffle_up, unsigned)
AEGIS_SIMT_SHUFFLE(__shfl_down_sync, shuffle_down, unsigned)
AEGIS_SIMT_SHUFFLE(__shfl_xor_sync, shuffle_xor, int)
#undef AEGIS_SIMT_SHUFFLE

inline unsigned __ballot_sync(unsigned mask, int predicate, AEGIS_SIMT_HERE) {
  const aegis::simt::WarpRequest request{aegis::simt::WarpOp::ballot, mask, predicate != 0};
  return static_cast<unsigned>(aegis::simt::warp_op(request, where).value);
}
inline int __any_sync(unsigned mask, int predicate, AEGIS_SIMT_HERE) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, AEGIS_SIMT_HERE) {
  return __ballot_sync(mask, predicate == 0, where) == 0;
}

template <aegis::simt::Shuffled T>
unsigned __match_any_sync(unsigned mask, T value, AEGIS_SIMT_HERE) {
  const auto bits = aegis::simt::to_bits(value);
  return static_cast<unsigned>(
      aegis::simt::warp_op({aegis::simt::WarpOp::match_any, mask, bits}, where).value);
}
template <aegis::simt::Shuffled T>
unsigned __match_all_sync(unsigned mask, T value, int* predicate, AEGIS_SIMT_HERE) {
  const auto bits = aegis::simt::to_bits(value);
  const auto result = aegis::simt::warp_op({aegis::simt::WarpOp::match_all, mask, bits}, where);
  *predicate = result.predicate;
  return static_cast<unsigned>(result.value);
}

// Compute capability 8.0 and newer, which is all that is supported.
#define AEGIS_SIMT_REDUCE(name, op, T)                                             \
  inline T name(unsigned mask, T value, AEGIS_SIMT_HERE) {                         \
    const auto bits = static_cast<unsigned>(value);                                \
    return static_cast<T>(                                                         \
        aegis::simt::warp_op({aegis::simt::WarpOp::op, mask, bits}, where).value); \
  }
AEGIS_SIMT_REDUCE(__reduce_add_sync, reduce_add, int)
AEGIS_SIMT_REDUCE(__reduce_add_sync, reduce_add, unsigned)
AEGIS_SIMT_REDUCE(__reduce_min_sync, reduce_min_signed, int)
AEGIS_SIMT_REDUCE(__reduce_min_sync, reduce_min, unsigned)
AEGIS_SIMT_REDUCE(__reduce_max_sync, reduce_max_signed, int)
AEGIS_SIMT_REDUCE(__reduce_max_sync, reduce_max, unsigned)
AEGIS_SIMT_REDUCE(__reduce_and_sync, reduce_and, unsigned)
AEGIS_SIMT_REDUCE(__reduce_or_sync, reduce_or, unsigned)
AEGIS_SIMT_REDUCE(__reduce_xor_sync, reduce_xor, unsigned)
#undef AEGIS_SIMT_REDUCE
