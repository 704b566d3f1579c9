// The loops shared by the vector versions of ternary_linear.
#pragma once

#include <immintrin.h>

#include "kernels/skinny_rows.h"
#include "kernels/ternary_linear.h"

namespace aegis::kernels {

// Many rows of x are taken a panel at a time, which stays in the second-level cache while all
// weights pass by; and within a panel a few rows meet a few columns, so that what is unpacked from
// a word of weights, and every activation, is used several times.
//
// `Lanes` lives in an anonymous namespace of its ISA's file, which gives every instantiation here
// internal linkage, so the linker cannot swap one ISA's copy for another's. It has:
//   kRows           the most rows of x taken at a time: 2 or 4
//   kColumns        columns taken at a time
//   dots<R, C>(values, stride, words, count, sums)
//       R rows of activations, `stride` apart, with C rows of `count` words: to sums[c * R + r]
//       Σ (1 - trit) · value. False where it met a code of 11
//   exact<R, C>(floats, stride, words, count, sums)
//       the same with activations as they are: Σ trit · float

constexpr int64_t kPanelBytes = 256 << 10;

// static: each instruction set compiles a copy of its own.
static inline float widen(float value) { return value; }
static inline float widen(BFloat16 value) { return widen_bfloat16(value); }
static inline float widen(Half value) { return _cvtsh_ss(value.bits); }
static inline void narrow(float value, float* out) { *out = value; }
static inline void narrow(float value, BFloat16* out) { *out = narrow_bfloat16(value); }
static inline void narrow(float value, Half* out) {
  *out = {_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)};
}

namespace {  // each instruction set compiles a copy of its own

/// The next at most kTernaryBlock elements, as floats; in `room` where they are not.
struct TernaryChunk {
  alignas(64) float room[kTernaryBlock];
  const float* of(const float* x, int64_t) { return x; }
  template <class Element>
  const float* of(const Element* x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) room[i] = widen(x[i]);
    return room;
  }
};

}  // namespace

/// The loops below are simple on purpose: the compiler makes vectors of them. Magnitudes are
/// compared as whole numbers, which have the order of the floats, NaN and infinity above all.
template <class Lanes, class Element>
inline void ternary_prepare_rows(const TernaryLinear<Element>& job, int64_t begin, int64_t end) {
  constexpr uint32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff;
  TernaryChunk chunk;
  for (int64_t row = begin; row < end; ++row) {
    const Element* x = job.x + row * job.k;
    int8_t* values = job.values + row * ternary_padded(job.k);
    uint32_t bits = 0;
    for (int64_t at = 0; at < job.k; at += kTernaryBlock) {
      const int64_t count = job.k - at < kTernaryBlock ? job.k - at : kTernaryBlock;
      const float* floats = chunk.of(x + at, count);
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t one = __builtin_bit_cast(uint32_t, floats[i]) & kMagnitude;
        bits = one > bits ? one : bits;
      }
    }
    const bool nothing = bits == 0 || bits >= kInfinity;
    const float largest = nothing ? 1.0f : __builtin_bit_cast(float, bits);
    const float enlarged = largest < 0x1p-100f ? 0x1p100f : 1.0f;
    const float factor = nothing ? 0.0f : 127 / (largest * enlarged);
    job.scales[row] = bits == 0 ? 1.0f : nothing ? __builtin_nanf("") : largest / 127;
    int32_t sum = 0;
    for (int64_t at = 0; at < job.k; at += kTernaryBlock) {
      const int64_t count = job.k - at < kTernaryBlock ? job.k - at : kTernaryBlock;
      alignas(64) int8_t ordered[kTernaryBlock] = {};
      if (!nothing) {
        const float* floats = chunk.of(x + at, count);
        for (int64_t i = 0; i < count; ++i) {
          // In the last place of a number of this size is 1, so the addition rounds.
          constexpr float kRounder = 0x1.8p23f;
          const float rounded = floats[i] * enlarged * factor + kRounder;
          const int32_t value = __builtin_bit_cast(int32_t, rounded) - 0x4b400000;
          ordered[i] = static_cast<int8_t>(value);
          sum += value;
        }
      }
      for (int64_t j = 0; j < kTernaryBlock / 4; ++j) {
        for (int64_t s = 0; s < 4; ++s) values[at + s * 64 + j] = ordered[4 * j + s];
      }
    }
    job.sums[row] = sum;
  }
}

template <class Lanes, class Element>
inline void ternary_prepare_rows_exact(const TernaryLinear<Element>& job, int64_t begin,
                                       int64_t end) {
  const int64_t padded = ternary_padded(job.k);
  for (int64_t row = begin; row < end; ++row) {
    float* floats = job.floats + row * padded;
    for (int64_t i = 0; i < job.k; ++i) floats[i] = widen(job.x[row * job.k + i]);
    for (int64_t i = job.k; i < padded; ++i) floats[i] = 0;
  }
}

/// Rows [row, row + R) of `out` at columns first, first + apart, ...
template <class Lanes, bool kExact, int R, int C, class Element>
inline bool ternary_tile(const TernaryLinear<Element>& job, int64_t row, int64_t first,
                         int64_t apart) {
  const int64_t padded = ternary_padded(job.k), count = trit_words(job.k);
  const uint32_t* words[C];
  for (int c = 0; c < C; ++c) words[c] = job.packed + (first + c * apart) * count;
  bool valid;
  float totals[C * R];
  if constexpr (kExact) {
    valid = Lanes::template exact<R, C>(job.floats + row * padded, padded, words, count, totals);
  } else {
    int32_t sums[C * R];
    valid = Lanes::template dots<R, C>(job.values + row * padded, padded, words, count, sums);
    for (int i = 0; i < C * R; ++i) {
      totals[i] = static_cast<float>(job.sums[row + i % R] - sums[i]);
    }
  }
  const int64_t used = job.k % kTritsInWord;  // of the last word
  for (int c = 0; c < C; ++c) {
    if (used) valid &= words[c][count - 1] >> 2 * used == 0;
    const int64_t column = first + c * apart;
    const float scale = job.scale[column * job.scale_stride];
    const float bias = job.bias ? widen(job.bias[column]) : 0;
    for (int r = 0; r < R; ++r) {
      const float both = kExact ? scale : job.scales[row + r] * scale;
      const float product = totals[c * R + r] * both;
      narrow(job.bias ? product + bias : product, job.out + (row + r) * job.n + column);
    }
  }
  return valid;
}

/// Rows [row, end) at some columns.
template <class Lanes, bool kExact, int C, class Element>
inline bool ternary_tiles(const TernaryLinear<Element>& job, int64_t row, int64_t end,
                          int64_t first, int64_t apart) {
  bool valid = true;
  if constexpr (Lanes::kRows >= 4) {
    for (; row + 4 <= end; row += 4) {
      valid &= ternary_tile<Lanes, kExact, 4, C>(job, row, first, apart);
    }
    if (row + 3 == end) return valid & ternary_tile<Lanes, kExact, 3, C>(job, row, first, apart);
  }
  for (; row + 2 <= end; row += 2) {
    valid &= ternary_tile<Lanes, kExact, 2, C>(job, row, first, apart);
  }
  if (row < end) valid &= ternary_tile<Lanes, kExact, 1, C>(job, row, first, apart);
  return valid;
}

template <class Lanes, bool kExact, class Element>
inline bool ternary_rows(const TernaryLinear<Element>& job, int64_t begin, int64_t end) {
  const int64_t row_bytes = ternary_padded(job.k) * (kExact ? 4 : 1);
  int64_t panel = kPanelBytes / (row_bytes > 0 ? row_bytes : 1) / Lanes::kRows * Lanes::kRows;
  if (panel < Lanes::kRows) panel = Lanes::kRows;
  const int64_t apart = (end - begin) / Lanes::kColumns;
  bool valid = true;
  for (int64_t row = 0; row < job.rows; row += panel) {
    const int64_t last = row + panel < job.rows ? row + panel : job.rows;
    for (int64_t i = 0; i < apart; ++i) {
      valid &= ternary_tiles<Lanes, kExact, Lanes::kColumns>(job, row, last, begin + i, apart);
    }
    for (int64_t column = begin + apart * Lanes::kColumns; column < end; ++column) {
      valid &= ternary_tiles<Lanes, kExact, 1>(job, row, last, column, 0);
    }
  }
  return valid;
}

}  // namespace aegis::kernels

/// The kernels of an ISA, out of its `Lanes`: for use inside its namespace.
#define AEGIS_TERNARY_KERNELS                                                                 \
  template <class Element>                                                                    \
  void ternary_prepare(const TernaryLinear<Element>& job, int64_t begin, int64_t end) {       \
    ternary_prepare_rows<Lanes>(job, begin, end);                                             \
  }                                                                                           \
  template <class Element>                                                                    \
  bool ternary_columns(const TernaryLinear<Element>& job, int64_t begin, int64_t end) {       \
    return ternary_rows<Lanes, false>(job, begin, end);                                       \
  }                                                                                           \
  template <class Element>                                                                    \
  void ternary_prepare_exact(const TernaryLinear<Element>& job, int64_t begin, int64_t end) { \
    ternary_prepare_rows_exact<Lanes>(job, begin, end);                                       \
  }                                                                                           \
  template <class Element>                                                                    \
  bool ternary_columns_exact(const TernaryLinear<Element>& job, int64_t begin, int64_t end) { \
    return ternary_rows<Lanes, true>(job, begin, end);                                        \
  }                                                                                           \
  AEGIS_TERNARY_LINEAR_TYPES(AEGIS_TERNARY_INSTANTIATE)

#define AEGIS_TERNARY_INSTANTIATE(Element)                                              \
  template void ternary_prepare(const TernaryLinear<Element>&, int64_t, int64_t);       \
  template bool ternary_columns(const TernaryLinear<Element>&, int64_t, int64_t);       \
  template void ternary_prepare_exact(const TernaryLinear<Element>&, int64_t, int64_t); \
  template bool ternary_columns_exact(const TernaryLinear<Element>&, int64_t, int64_t);
