#include "kernels/skinny_linear.h"

#include <immintrin.h>

#include "kernels/skinny_avx512.h"
#include "kernels/skinny_rows.h"

namespace aegis::kernels::avx512_bf16 {
namespace {

struct Lanes : Avx512Sums {
  using Element = BFloat16;
  using Vector = __m512bh;
  static constexpr int kWidth = 32;
  static Vector load(const BFloat16* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static Vector load(const BFloat16* p, int64_t n) {
    return (__m512bh)_mm512_maskz_loadu_epi16((1u << n) - 1, p);
  }
  static Sum add(Sum sum, Vector x, Vector w) { return _mm512_dpbf16_ps(sum, x, w); }
  static float widen(BFloat16 value) { return widen_bfloat16(value); }
  static BFloat16 narrow(float value) { return narrow_bfloat16(value); }
};

}  // namespace

template <class Element>
void skinny_linear(const SkinnyLinear<Element>& job, int64_t begin, int64_t end) {
  skinny_rows<Lanes>(job, begin, end);
}
template void skinny_linear(const SkinnyLinear<BFloat16>&, int64_t, int64_t);

}  // namespace aegis::kernels::avx512_bf16
