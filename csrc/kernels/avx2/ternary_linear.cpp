#include "kernels/ternary_linear.h"

#include <immintrin.h>

#include "kernels/ternary_rows.h"

namespace aegis::kernels::avx2 {
namespace {

__m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

int32_t total(__m256i sums) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  four = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 1)));
}

float total(__m256 sums) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

struct Lanes {
  static constexpr int kRows = 2, kColumns = 2;
  /// Blocks whose sums fit 16 bits: a block adds at most 4 · 4 · 4 · 127 to `fours`.
  static constexpr int64_t kBlocks = 4;

  /// 16 words at a time. The code of a trit t becomes the digit 1 - t, which is unsigned, as
  /// vpmaddubsw wants one of its operands: 10 stays, 00 and 01 become 01 and 00.
  template <int R, int C>
  static bool dots(const int8_t* values, int64_t stride, const uint32_t* const (&words)[C],
                   int64_t count, int32_t* out) {
    const __m256i low = _mm256_set1_epi32(kLowBits);
    const __m256i three = _mm256_set1_epi8(3), twelve = _mm256_set1_epi8(12);
    __m256i sums[C * R] = {};  // four times what they should be
    __m256i pairs = _mm256_setzero_si256();
    const auto blocks = [&](const uint32_t* const(&from)[C], int64_t at, int64_t end,
                            int64_t place) __attribute__((always_inline)) {
      // Half of the digits are not shifted down, and count four times; they have their own sums.
      __m256i ones[C * R] = {}, fours[C * R] = {};
      for (; at < end; at += 8, place += 8 * kTritsInWord) {
        const int8_t* y =
            values + place / kTernaryBlock * kTernaryBlock + place % kTernaryBlock / 4;
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
          const __m256i codes = load(from[c] + at);
          const __m256i high = _mm256_srli_epi32(codes, 1);
          pairs = _mm256_or_si256(pairs, _mm256_and_si256(codes, high));
          const __m256i digits = _mm256_xor_si256(codes, _mm256_andnot_si256(high, low));
          const __m256i later = _mm256_srli_epi16(digits, 4);
          const __m256i digit0 = _mm256_and_si256(digits, three);
          const __m256i digit1 = _mm256_and_si256(digits, twelve);
          const __m256i digit2 = _mm256_and_si256(later, three);
          const __m256i digit3 = _mm256_and_si256(later, twelve);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) {
            const int8_t* mine = y + r * stride;
            const int i = c * R + r;
            const __m256i one = _mm256_add_epi16(_mm256_maddubs_epi16(digit0, load(mine)),
                                                 _mm256_maddubs_epi16(digit2, load(mine + 128)));
            const __m256i four = _mm256_add_epi16(_mm256_maddubs_epi16(digit1, load(mine + 64)),
                                                  _mm256_maddubs_epi16(digit3, load(mine + 192)));
            ones[i] = _mm256_add_epi16(ones[i], one);
            fours[i] = _mm256_add_epi16(fours[i], four);
          }
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < C * R; ++i) {
        sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(ones[i], _mm256_set1_epi16(4)));
        sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(fours[i], _mm256_set1_epi16(1)));
      }
    };
    const int64_t whole = count / 16 * 16;
    for (int64_t at = 0; at < whole; at += 16 * kBlocks) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        for (int64_t line = 0; line < kBlocks; ++line) {
          __builtin_prefetch(reinterpret_cast<const char*>(words[c] + at) + kAhead + line * kLine,
                             0, 2);
        }
      }
      const int64_t next = at + 16 * kBlocks;
      blocks(words, at, next < whole ? next : whole, at * kTritsInWord);
    }
    if (whole < count) {
      uint32_t ends[C][16] = {};
      const uint32_t* tails[C];
      for (int c = 0; c < C; ++c) {
        for (int64_t i = whole; i < count; ++i) ends[c][i - whole] = words[c][i];
        tails[c] = ends[c];
      }
      blocks(tails, 0, 16, whole * kTritsInWord);
    }
#pragma GCC unroll 16
    for (int i = 0; i < C * R; ++i) out[i] = total(_mm256_srai_epi32(sums[i], 2));
    return _mm256_testz_si256(pairs, low);
  }

  template <int R, int C>
  static bool exact(const float* floats, int64_t stride, const uint32_t* const (&words)[C],
                    int64_t count, float* out) {
    const __m256i plus =
        _mm256_setr_epi32(1, 1 << 2, 1 << 4, 1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14);
    const __m256i minus = _mm256_slli_epi32(plus, 1);
    __m256 added[C * R] = {}, taken[C * R] = {};
    uint32_t twos = 0;
    for (int64_t half = 0; half < 2 * count; ++half) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const uint32_t word = words[c][half / 2];
        twos |= word & word >> 1 & kLowBits;
        const __m256i codes = _mm256_set1_epi32(static_cast<int>(half % 2 ? word >> 16 : word));
        const __m256 ups =
            _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(codes, plus), plus));
        const __m256 downs =
            _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(codes, minus), minus));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const __m256 x = _mm256_loadu_ps(floats + r * stride + half * 8);
          const int i = c * R + r;
          added[i] = _mm256_add_ps(added[i], _mm256_and_ps(x, ups));
          taken[i] = _mm256_add_ps(taken[i], _mm256_and_ps(x, downs));
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < C * R; ++i) out[i] = total(_mm256_sub_ps(added[i], taken[i]));
    return twos == 0;
  }
};

}  // namespace

AEGIS_TERNARY_KERNELS

}  // namespace aegis::kernels::avx2
