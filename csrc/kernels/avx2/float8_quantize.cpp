#include "kernels/float8_quantize.h"

#include <immintrin.h>

#include "kernels/float8_groups.h"
#include "kernels/tail_avx2.h"

namespace aegis::kernels::avx2 {
namespace {

struct Casts {
  using Vector = __m256;
  using Bits = __m256i;
  static constexpr int64_t kWidth = 8;

  static Bits larger(Bits bits, Vector x) {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x), all(0x7fffffff));
    const __m256i finite = _mm256_cmpgt_epi32(all(0x7f800000), magnitude);
    return _mm256_max_epi32(bits, _mm256_and_si256(magnitude, finite));
  }
  static float largest(Bits bits) {
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return __builtin_bit_cast(float, _mm_cvtsi128_si32(four));
  }

  // The steps of float_to_e4m3 (kernels/convert.h), for eight at once.
  static Bits cast(Vector x, float scale) {
    const __m256i word = _mm256_castps_si256(_mm256_div_ps(x, _mm256_set1_ps(scale)));
    const __m256i magnitude = _mm256_and_si256(word, all(0x7fffffff));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), all(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(magnitude, all(0x7ffff - (120 << 23))), odd), 20);
    const __m256i units = _mm256_sub_epi32(
        _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(0x1p14f))),
        all(0x46800000));
    __m256i code =
        _mm256_blendv_epi8(rounded, units, _mm256_cmpgt_epi32(all(0x3c800000), magnitude));
    code = _mm256_blendv_epi8(code, all(0x7e), _mm256_cmpgt_epi32(magnitude, all(0x43e00000 - 1)));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(word, 24), all(0x80));
    return _mm256_blendv_epi8(_mm256_or_si256(code, sign), all(0x7f),
                              _mm256_cmpgt_epi32(magnitude, all(0x7f800000)));
  }

  static void store(uint8_t* p, Bits codes) { _mm_storel_epi64((__m128i*)p, bytes(codes)); }
  static void store(uint8_t* p, Bits codes, int64_t n) {
    alignas(16) uint8_t all[16];
    _mm_store_si128((__m128i*)all, bytes(codes));
    for (int64_t i = 0; i < n; ++i) p[i] = all[i];
  }

 private:
  static __m256i all(int value) { return _mm256_set1_epi32(value); }
  /// The low byte of each lane, in the first eight bytes.
  static __m128i bytes(__m256i codes) {
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    return _mm_packus_epi16(words, words);
  }
};

template <class E>
struct Lanes;

template <>
struct Lanes<float> : Casts {
  using Element = float;
  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static Vector load(const float* p, int64_t n) { return load(Tail<float, kWidth>(p, n).elements); }
};

template <>
struct Lanes<Half> : Casts {
  using Element = Half;
  static Vector load(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
  static Vector load(const Half* p, int64_t n) { return load(Tail<Half, kWidth>(p, n).elements); }
};

template <>
struct Lanes<BFloat16> : Casts {
  using Element = BFloat16;
  static Vector load(const BFloat16* p) {
    const __m128i words = _mm_loadu_si128((const __m128i*)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
  }
  static Vector load(const BFloat16* p, int64_t n) {
    return load(Tail<BFloat16, kWidth>(p, n).elements);
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

}  // namespace aegis::kernels::avx2
