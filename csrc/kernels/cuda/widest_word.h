// Copies in words as wide as addresses and sizes allow.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/simt.cuh"

namespace aegis::kernels::cuda {

/// Calls `f(std::type_identity<Word>{})` with the widest word, of 1 to 16 bytes, that divides every
/// number in `all`: the addresses, strides and sizes of what is copied, joined by `|`.
template <class F>
void with_widest_word(uint64_t all, F&& f) {
  if (all % 16 == 0) return f(std::type_identity<uint4>{});
  if (all % 8 == 0) return f(std::type_identity<uint2>{});
  if (all % 4 == 0) return f(std::type_identity<uint32_t>{});
  if (all % 2 == 0) return f(std::type_identity<uint16_t>{});
  f(std::type_identity<uint8_t>{});
}

}  // namespace aegis::kernels::cuda
