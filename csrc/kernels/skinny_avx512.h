// Sums of AVX-512, for the two levels that have them.
#pragma once

#include <immintrin.h>

namespace aegis::kernels {
namespace {  // each level compiles a copy of its own

struct Avx512Sums {
  using Sum = __m512;
  static constexpr int kSums = 24;

  /// The sum of each of four vectors.
  static void totals(const Sum* sums, float* out) {
    const __m512d low = _mm512_castps_pd(pairs(sums[0], sums[1]));
    const __m512d high = _mm512_castps_pd(pairs(sums[2], sums[3]));
    const __m512 quarters = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                                          _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    const __m256 halves =
        _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
    _mm_storeu_ps(out,
                  _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }

 private:
  static __m512 pairs(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
};

}  // namespace
}  // namespace aegis::kernels
