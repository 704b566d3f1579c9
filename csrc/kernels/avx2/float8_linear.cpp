#include "kernels/float8_linear.h"

#include <immintrin.h>

#include "kernels/float8_rows.h"

namespace aegis::kernels::avx2 {
namespace {

struct Lanes {
  using Value = float;
  using Vector = __m256;
  using Sum = __m256;
  static constexpr int64_t kWidth = 8, kFloats = 8;
  static constexpr int kSums = 8, kTileRows = 2;
  static constexpr bool kDecodesNan = false;

  // The exponent of E4M3 moved into that of float16 is a number 2⁻⁸ of the right size, subnormal
  // numbers included.
  static void decode(const uint8_t* p, Vector* out) {
    const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
    const __m256i words = _mm256_and_si256(_mm256_slli_epi16(codes, 7),
                                           _mm256_set1_epi16(static_cast<short>(0xbf80)));
    out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(words));
    out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1));
  }
  static void decode(const uint8_t* p, int64_t n, Vector* out) {
    uint8_t all[2 * kWidth] = {};
    for (int64_t i = 0; i < n; ++i) all[i] = p[i];
    decode(all, out);
  }
  static Vector spread(Vector v) { return _mm256_mul_ps(v, _mm256_set1_ps(0x1p16f)); }

  static Vector load(const float* p) { return _mm256_load_ps(p); }
  static void store(float* p, Vector v) { _mm256_store_ps(p, v); }
  static Sum add(Sum sum, Vector x, Vector w) { return _mm256_fmadd_ps(x, w, sum); }
  static Sum scaled(Sum total, Sum sum, float scale) {
    return _mm256_fmadd_ps(sum, _mm256_set1_ps(scale), total);
  }
  static void totals(const Sum* sums, float* out) {
    const __m256 low = _mm256_hadd_ps(sums[0], sums[1]), high = _mm256_hadd_ps(sums[2], sums[3]);
    const __m256 four = _mm256_hadd_ps(low, high);  // of each half
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1)));
  }

  // The two NaN are 0x7f, the largest signed byte, and 0xff, the largest unsigned one.
  static bool has_nan(const uint8_t* p, int64_t n) {
    __m256i highest = _mm256_setzero_si256(), largest = highest;
    for (; n >= 32; p += 32, n -= 32) {
      const __m256i codes = _mm256_loadu_si256((const __m256i*)p);
      highest = _mm256_max_epi8(highest, codes);
      largest = _mm256_max_epu8(largest, codes);
    }
    bool found =
        _mm256_movemask_epi8(_mm256_or_si256(_mm256_cmpeq_epi8(highest, _mm256_set1_epi8(0x7f)),
                                             _mm256_cmpeq_epi8(largest, _mm256_set1_epi8(-1))));
    for (; n > 0; ++p, --n) found |= (*p & 0x7f) == 0x7f;
    return found;
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

}  // namespace aegis::kernels::avx2
