#include "kernels/float8_linear.h"

#include <immintrin.h>

#include "kernels/float8_rows.h"
#include "kernels/skinny_avx512.h"

namespace aegis::kernels::avx512 {
namespace {

struct Lanes : Avx512Sums {
  using Value = float;
  using Vector = __m512;
  static constexpr int64_t kWidth = 16, kFloats = 16;
  static constexpr int kTileRows = 4;
  static constexpr bool kDecodesNan = false;

  // The exponent of E4M3 moved into that of float16 is a number 2⁻⁸ of the right size, subnormal
  // numbers included.
  static void decode(__m256i codes, Vector* out) {
    const __m512i words = _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7),
                                           _mm512_set1_epi16(static_cast<short>(0xbf80)));
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(words));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1));
  }
  static void decode(const uint8_t* p, Vector* out) {
    decode(_mm256_loadu_si256((const __m256i*)p), out);
  }
  static void decode(const uint8_t* p, int64_t n, Vector* out) {
    decode(_mm256_maskz_loadu_epi8((1u << n) - 1, p), out);
  }
  static Vector spread(Vector v) { return _mm512_mul_ps(v, _mm512_set1_ps(0x1p16f)); }

  static Vector load(const float* p) { return _mm512_load_ps(p); }
  static void store(float* p, Vector v) { _mm512_store_ps(p, v); }
  static Sum add(Sum sum, Vector x, Vector w) { return _mm512_fmadd_ps(x, w, sum); }
  static Sum scaled(Sum total, Sum sum, float scale) {
    return _mm512_fmadd_ps(sum, _mm512_set1_ps(scale), total);
  }

  // The two NaN are 0x7f, the largest signed byte, and 0xff, the largest unsigned one.
  static bool has_nan(const uint8_t* p, int64_t n) {
    __m512i highest = _mm512_set1_epi8(-128), largest = _mm512_setzero_si512();
    for (; n > 0; p += 64, n -= 64) {
      const __mmask64 some = n >= 64 ? ~__mmask64{0} : (__mmask64{1} << n) - 1;
      const __m512i codes = _mm512_maskz_loadu_epi8(some, p);
      highest = _mm512_max_epi8(highest, codes);
      largest = _mm512_max_epu8(largest, codes);
    }
    return (_mm512_cmpeq_epi8_mask(highest, _mm512_set1_epi8(0x7f)) |
            _mm512_cmpeq_epi8_mask(largest, _mm512_set1_epi8(-1))) != 0;
  }

  static float widen_half(Half value) { return _cvtsh_ss(value.bits); }
  static Half narrow_half(float value) { return {_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)}; }
};

}  // namespace

void float8_spread(const uint8_t* values, int64_t k, void* row) {
  float8_spread_row<Lanes>(values, k, row);
}

void float8_linear(const Float8Linear& job, int64_t begin, int64_t end) {
  float8_multiply<Lanes>(job, begin, end);
}

}  // namespace aegis::kernels::avx512
