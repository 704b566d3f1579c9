#include "kernels/skinny_linear.h"

#include <immintrin.h>

#include "kernels/mask_avx512.h"
#include "kernels/skinny_avx512.h"
#include "kernels/skinny_rows.h"

namespace aegis::kernels::avx512 {
namespace {

template <class E>
struct Lanes;

template <>
struct Lanes<float> : Avx512Sums {
  using Element = float;
  using Vector = __m512;
  static constexpr int kWidth = 16;
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static Vector load(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_of_16(n), p); }
  static Sum add(Sum sum, Vector x, Vector w) { return _mm512_fmadd_ps(x, w, sum); }
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
};

template <>
struct Lanes<Half> : Avx512Sums {
  using Element = Half;
  using Vector = __m512;
  static constexpr int kWidth = 16;
  static Vector load(const Half* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
  }
  static Vector load(const Half* p, int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_of_16(n), p));
  }
  static Sum add(Sum sum, Vector x, Vector w) { return _mm512_fmadd_ps(x, w, sum); }
  static float widen(Half value) { return _cvtsh_ss(value.bits); }
  static Half narrow(float value) { return {_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)}; }
};

template <>
struct Lanes<BFloat16> : Avx512Sums {
  using Element = BFloat16;
  // x and w are taken apart alike, so products meet without their elements being put in order.
  struct Vector {
    __m512 even, odd;
  };
  static constexpr int kWidth = 32;
  static Vector split(__m512i both) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)))};
  }
  static Vector load(const BFloat16* p) { return split(_mm512_loadu_si512(p)); }
  static Vector load(const BFloat16* p, int64_t n) {
    return split(_mm512_maskz_loadu_epi16((1u << n) - 1, p));
  }
  static Sum add(Sum sum, const Vector& x, const Vector& w) {
    return _mm512_fmadd_ps(x.odd, w.odd, _mm512_fmadd_ps(x.even, w.even, sum));
  }
  static float widen(BFloat16 value) { return widen_bfloat16(value); }
  static BFloat16 narrow(float value) { return narrow_bfloat16(value); }
};

}  // namespace

template <class Element>
void skinny_linear(const SkinnyLinear<Element>& job, int64_t begin, int64_t end) {
  skinny_rows<Lanes<Element>>(job, begin, end);
}

#define AEGIS_INSTANTIATE(Element) \
  template void skinny_linear(const SkinnyLinear<Element>&, int64_t, int64_t);
AEGIS_SKINNY_LINEAR_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::avx512
