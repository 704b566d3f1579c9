// The lanes of AVX-512, for sample_lanes.h.
#pragma once

#include <immintrin.h>

#include "kernels/sample_lanes.h"

namespace aegis::kernels::avx512 {
namespace {  // of each file that includes it

struct Operations {
  using Floats = __m512;
  using Mask = __mmask16;
  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
  static Floats largest(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats smallest(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static Mask above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static Mask equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static Mask at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  static Mask unordered(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
  static Mask either(Mask a, Mask b) { return _kor_mask16(a, b); }
  static Mask both(Mask a, Mask b) { return _kand_mask16(a, b); }
  static uint32_t bits(Mask mask) { return mask; }
  static Floats keep(Mask mask, Floats a) { return _mm512_maskz_mov_ps(mask, a); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats raise(Floats a, Floats r) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(r), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), exponent));
  }
  static float fold(Floats a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }

  /// The first n lanes of `a`; -infinity behind them.
  static Floats first(Floats a, int64_t n) {
    return _mm512_mask_mov_ps(all(kLowest), mask_of(n), a);
  }
  static Mask mask_of(int64_t n) { return static_cast<Mask>((1u << n) - 1); }
};

template <class E>
struct Lanes;

template <>
struct Lanes<float> : Operations {
  using Element = float;
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static Floats load(const float* p, int64_t n) {
    return _mm512_mask_loadu_ps(all(kLowest), mask_of(n), p);
  }
};

template <>
struct Lanes<Half> : Operations {
  using Element = Half;
  static Floats load(const Half* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
  }
  static Floats load(const Half* p, int64_t n) {
    return first(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask_of(n), p)), n);
  }
};

template <>
struct Lanes<BFloat16> : Operations {
  using Element = BFloat16;
  static Floats widen(__m256i p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(p), 16));
  }
  static Floats load(const BFloat16* p) { return widen(_mm256_loadu_si256((const __m256i*)p)); }
  static Floats load(const BFloat16* p, int64_t n) {
    return first(widen(_mm256_maskz_loadu_epi16(mask_of(n), p)), n);
  }
};

}  // namespace
}  // namespace aegis::kernels::avx512
