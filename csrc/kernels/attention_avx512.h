// AVX-512 for decode_attention, for the two levels that have it.
#pragma once

#include <immintrin.h>

#include "kernels/element.h"
#include "kernels/skinny_avx512.h"

namespace aegis::kernels {
namespace {  // each level compiles a copy of its own

struct Avx512Floats : Avx512Sums {
  using Floats = __m512;
  static constexpr int64_t kFloats = 16;
  static constexpr int kQueries = 4;
  static Floats all(float value) { return _mm512_set1_ps(value); }
  static float first(Floats v) { return _mm512_cvtss_f32(v); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static float largest(Floats v) { return _mm512_reduce_max_ps(v); }
  static float total(Floats v) { return _mm512_reduce_add_ps(v); }
  static Floats round(Floats v) { return _mm512_roundscale_ps(v, 8); }
  static Floats power(Floats v) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }
  static Floats below(Floats v, Floats limit, Floats a, Floats b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(v, limit, _CMP_LT_OQ), b, a);
  }
  static Floats absolute(Floats v) { return _mm512_abs_ps(v); }
  static Floats signed_as(Floats v, Floats sign) {
    return _mm512_or_ps(v, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
  }
};

/// Elements in pairs: those at even places in one vector, those at odd places in another.
struct Avx512BFloat16 : Avx512Floats {
  using Element = BFloat16;
  static constexpr int64_t kWidth = 32;
  static constexpr int kVectors = 2;
  static void widen(const BFloat16* p, Floats* out) { split(_mm512_loadu_si512(p), out); }
  static void widen(const BFloat16* p, int64_t n, Floats* out) {
    split(_mm512_maskz_loadu_epi16((1u << n) - 1, p), out);
  }
  static void narrow(const Floats* in, BFloat16* p) { _mm512_storeu_si512(p, join(in)); }
  static void narrow(const Floats* in, BFloat16* p, int64_t n) {
    _mm512_mask_storeu_epi16(p, (1u << n) - 1, join(in));
  }
  static void split(__m512i both, Floats* out) {
    out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    out[1] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)));
  }

 private:
  static __m512i join(const Floats* in) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(rounded(in[0]), 16),
                                   rounded(in[1]));
  }
  /// The upper halves are the numbers in bfloat16.
  static __m512i rounded(Floats v) {
    const __m512i word = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(word, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), sum,
                                   _mm512_set1_epi32(0x7fff0000));
  }
};

}  // namespace
}  // namespace aegis::kernels
