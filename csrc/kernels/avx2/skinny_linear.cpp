#include "kernels/skinny_linear.h"

#include <immintrin.h>

#include "kernels/skinny_rows.h"
#include "kernels/tail_avx2.h"

namespace aegis::kernels::avx2 {
namespace {

struct Sums {
  using Sum = __m256;
  static constexpr int kSums = 8;
  static void totals(const Sum* sums, float* out) {
    const __m256 low = _mm256_hadd_ps(sums[0], sums[1]), high = _mm256_hadd_ps(sums[2], sums[3]);
    const __m256 four = _mm256_hadd_ps(low, high);  // of each half
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1)));
  }
};

template <class E>
struct Lanes;

template <>
struct Lanes<float> : Sums {
  using Element = float;
  using Vector = __m256;
  static constexpr int kWidth = 8;
  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static Vector load(const float* p, int64_t n) { return load(Tail<float, kWidth>(p, n).elements); }
  static Sum add(Sum sum, Vector x, Vector w) { return _mm256_fmadd_ps(x, w, sum); }
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
};

template <>
struct Lanes<Half> : Sums {
  using Element = Half;
  using Vector = __m256;
  static constexpr int kWidth = 8;
  static Vector load(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
  static Vector load(const Half* p, int64_t n) { return load(Tail<Half, kWidth>(p, n).elements); }
  static Sum add(Sum sum, Vector x, Vector w) { return _mm256_fmadd_ps(x, w, sum); }
  static float widen(Half value) { return _cvtsh_ss(value.bits); }
  static Half narrow(float value) { return {_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)}; }
};

template <>
struct Lanes<BFloat16> : Sums {
  using Element = BFloat16;
  // x and w are taken apart alike, so products meet without their elements being put in order.
  struct Vector {
    __m256 even, odd;
  };
  static constexpr int kWidth = 16;
  static Vector load(const BFloat16* p) {
    const __m256i both = _mm256_loadu_si256((const __m256i*)p);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536)))};
  }
  static Vector load(const BFloat16* p, int64_t n) {
    return load(Tail<BFloat16, kWidth>(p, n).elements);
  }
  static Sum add(Sum sum, const Vector& x, const Vector& w) {
    return _mm256_fmadd_ps(x.odd, w.odd, _mm256_fmadd_ps(x.even, w.even, sum));
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

}  // namespace aegis::kernels::avx2
