#include "kernels/float8_quantize.h"

#include <immintrin.h>

#include "kernels/float8_groups.h"
#include "kernels/mask_avx512.h"

namespace aegis::kernels::avx512 {
namespace {

struct Casts {
  using Vector = __m512;
  using Bits = __m512i;
  static constexpr int64_t kWidth = 16;

  static Bits larger(Bits bits, Vector x) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x), all(0x7fffffff));
    const __mmask16 finite = _mm512_cmplt_epi32_mask(magnitude, all(0x7f800000));
    return _mm512_mask_max_epi32(bits, finite, bits, magnitude);
  }
  static float largest(Bits bits) {
    return __builtin_bit_cast(float, _mm512_reduce_max_epi32(bits));
  }

  // The steps of float_to_e4m3 (kernels/convert.h), for sixteen at once.
  static Bits cast(Vector x, float scale) {
    const __m512i word = _mm512_castps_si512(_mm512_div_ps(x, _mm512_set1_ps(scale)));
    const __m512i magnitude = _mm512_and_si512(word, all(0x7fffffff));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), all(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(magnitude, all(0x7ffff - (120 << 23))), odd), 20);
    const __m512i units = _mm512_sub_epi32(
        _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p14f))),
        all(0x46800000));
    __m512i code =
        _mm512_mask_mov_epi32(rounded, _mm512_cmplt_epi32_mask(magnitude, all(0x3c800000)), units);
    code =
        _mm512_mask_mov_epi32(code, _mm512_cmpge_epi32_mask(magnitude, all(0x43e00000)), all(0x7e));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(word, 24), all(0x80));
    return _mm512_mask_mov_epi32(_mm512_or_si512(code, sign),
                                 _mm512_cmpgt_epi32_mask(magnitude, all(0x7f800000)), all(0x7f));
  }

  static void store(uint8_t* p, Bits codes) {
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(codes));
  }
  static void store(uint8_t* p, Bits codes, int64_t n) {
    _mm512_mask_cvtepi32_storeu_epi8(p, first_of_16(n), codes);
  }

 private:
  static __m512i all(int value) { return _mm512_set1_epi32(value); }
};

template <class E>
struct Lanes;

template <>
struct Lanes<float> : Casts {
  using Element = float;
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static Vector load(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_of_16(n), p); }
};

template <>
struct Lanes<Half> : Casts {
  using Element = Half;
  static Vector load(const Half* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
  }
  static Vector load(const Half* p, int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_of_16(n), p));
  }
};

template <>
struct Lanes<BFloat16> : Casts {
  using Element = BFloat16;
  static Vector widen(__m256i words) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
  }
  static Vector load(const BFloat16* p) { return widen(_mm256_loadu_si256((const __m256i*)p)); }
  static Vector load(const BFloat16* p, int64_t n) {
    return widen(_mm256_maskz_loadu_epi16(first_of_16(n), p));
  }
};

}  // namespace

template <class Element>
void float8_quantize(const Float8Quantize<Element>& job, int64_t begin, int64_t end) {
  float8_quantize_groups<Lanes<Element>>(job, begin, end);
}

#define AEGIS_INSTANTIATE(Element) \
  template void float8_quantize(const Float8Quantize<Element>&, int64_t, int64_t);
AEGIS_FLOAT8_QUANTIZE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::avx512
