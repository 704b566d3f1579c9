#include "kernels/ternary_linear.h"

#include <immintrin.h>

#include "kernels/ternary_rows.h"

namespace aegis::kernels::avx512_vnni {
namespace {

/// The sum of each of four vectors.
__m128i totals(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i low = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i quarters =
      _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  const __m256i halves =
      _mm256_add_epi32(_mm512_castsi512_si256(quarters), _mm512_extracti64x4_epi64(quarters, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

struct Lanes {
  static constexpr int kRows = 4, kColumns = 4;

  /// 16 words at a time. The code of a trit t becomes the digit 1 - t, which is unsigned, as
  /// vpdpbusd wants one of its operands: 10 stays, 00 and 01 become 01 and 00.
  template <int R, int C>
  static bool dots(const int8_t* values, int64_t stride, const uint32_t* const (&words)[C],
                   int64_t count, int32_t* out) {
    // With one row it pays not to shift digits down: those of bits 2s, 2s + 1 are worth 4^s, and
    // each s has sums of its own.
    constexpr int kSums = R == 1 ? 4 : 1;
    constexpr int kAll = (C * R + 3) / 4 * 4;
    const __m512i low = _mm512_set1_epi32(kLowBits);
    __m512i sums[kAll][kSums] = {};
    __m512i twos = _mm512_setzero_si512();
    const auto add = [&](int64_t at, auto load) __attribute__((always_inline)) {
      __m512i digits[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const __m512i codes = load(words[c] + at);
        const __m512i high = _mm512_srli_epi32(codes, 1);
        digits[c] = _mm512_ternarylogic_epi32(codes, high, low, 0x52);  // low ? ~(a | b) : a
        twos = _mm512_ternarylogic_epi32(twos, codes, high, 0xf8);      // a | (b & c)
      }
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s) {
        __m512i y[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          y[r] = _mm512_loadu_si512(values + r * stride + at * kTritsInWord + s * 64);
        }
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
          if constexpr (kSums == 4) {
            const __m512i digit =
                _mm512_and_si512(digits[c], _mm512_set1_epi8(static_cast<char>(3 << 2 * s)));
            sums[c][s] = _mm512_dpbusd_epi32(sums[c][s], digit, y[0]);
          } else {
            const __m512i digit =
                _mm512_and_si512(_mm512_srli_epi16(digits[c], 2 * s), _mm512_set1_epi8(3));
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
              sums[c * R + r][0] = _mm512_dpbusd_epi32(sums[c * R + r][0], digit, y[r]);
            }
          }
        }
      }
    };
    int64_t at = 0;
    for (; at + 16 <= count; at += 16) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        __builtin_prefetch(reinterpret_cast<const char*>(words[c] + at) + kAhead, 0, 2);
      }
      add(at, [](const uint32_t* p) { return _mm512_loadu_si512(p); });
    }
    if (at < count) {
      const auto some = static_cast<__mmask16>((1u << (count - at)) - 1);
      add(at, [some](const uint32_t* p) { return _mm512_maskz_loadu_epi32(some, p); });
    }
    if constexpr (kSums == 4) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        sums[c][0] = _mm512_add_epi32(
            _mm512_add_epi32(sums[c][0], _mm512_srai_epi32(sums[c][1], 2)),
            _mm512_add_epi32(_mm512_srai_epi32(sums[c][2], 4), _mm512_srai_epi32(sums[c][3], 6)));
      }
    }
    int32_t all[kAll];
#pragma GCC unroll 4
    for (int i = 0; i < kAll; i += 4) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(all + i),
                       totals(sums[i][0], sums[i + 1][0], sums[i + 2][0], sums[i + 3][0]));
    }
    for (int i = 0; i < C * R; ++i) out[i] = all[i];
    return _mm512_test_epi32_mask(twos, low) == 0;
  }

  template <int R, int C>
  static bool exact(const float* floats, int64_t stride, const uint32_t* const (&words)[C],
                    int64_t count, float* out) {
    const __m512i plus =
        _mm512_setr_epi32(1, 1 << 2, 1 << 4, 1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16,
                          1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30);
    const __m512i minus = _mm512_slli_epi32(plus, 1);
    __m512 added[C * R] = {}, taken[C * R] = {};
    uint32_t twos = 0;
    for (int64_t at = 0; at < count; ++at) {
      __m512 x[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) x[r] = _mm512_loadu_ps(floats + r * stride + at * kTritsInWord);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const uint32_t word = words[c][at];
        twos |= word & word >> 1 & kLowBits;
        const __m512i codes = _mm512_set1_epi32(static_cast<int>(word));
        const __mmask16 ups = _mm512_test_epi32_mask(codes, plus);
        const __mmask16 downs = _mm512_test_epi32_mask(codes, minus);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const int i = c * R + r;
          added[i] = _mm512_mask_add_ps(added[i], ups, added[i], x[r]);
          taken[i] = _mm512_mask_add_ps(taken[i], downs, taken[i], x[r]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < C * R; ++i)
      out[i] = _mm512_reduce_add_ps(_mm512_sub_ps(added[i], taken[i]));
    return twos == 0;
  }
};

}  // namespace

AEGIS_TERNARY_KERNELS

}  // namespace aegis::kernels::avx512_vnni
