#include "kernels/gather_records_scaled.h"

#include <immintrin.h>

#include <cstring>

#include "kernels/gather_rows.h"

namespace aegis::kernels::avx2 {
namespace {

void store(float* out, __m256 values) { _mm256_storeu_ps(out, values); }
void stream(float* out, __m256 values) { _mm256_stream_ps(out, values); }

__m128i bfloat16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
void store(uint16_t* out, __m256 values) { _mm_storeu_si128((__m128i*)out, bfloat16(values)); }
void stream(uint16_t* out, __m256 values) { _mm_stream_si128((__m128i*)out, bfloat16(values)); }

__m256 scaled(const uint8_t* values, __m256 scale, __m256 bias) {
  const __m128i eight = _mm_loadl_epi64((const __m128i*)values);
  const __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
  return _mm256_add_ps(_mm256_mul_ps(wide, scale), bias);
}

template <bool kStream>
struct Scale {
  template <class Out>
  static void put(Out* out, __m256 values) {
    kStream ? stream(out, values) : store(out, values);
  }

  /// Fewer than eight values, by way of memory that holds eight.
  template <class Out>
  static void rest(const uint8_t* values, Out* out, int64_t count, __m256 scale, __m256 bias) {
    uint8_t eight[8] = {};
    std::memcpy(eight, values, static_cast<size_t>(count));
    Out result[8];
    store(result, scaled(eight, scale, bias));
    std::memcpy(out, result, static_cast<size_t>(count) * sizeof(Out));
  }

  template <class Out>
  static void channel(const uint8_t* values, Out* out, int64_t count, float scale, float bias) {
    const __m256 a = _mm256_set1_ps(scale), b = _mm256_set1_ps(bias);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) put(out + i, scaled(values + i, a, b));
    if (i < count) rest(values + i, out + i, count - i, a, b);
  }

  template <class Out>
  static void each(const uint8_t* values, Out* out, int64_t count, const float* scale,
                   const float* bias) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      put(out + i, scaled(values + i, _mm256_loadu_ps(scale + i), _mm256_loadu_ps(bias + i)));
    }
    if (i == count) return;
    float a[8] = {}, b[8] = {};
    std::memcpy(a, scale + i, static_cast<size_t>(count - i) * sizeof(float));
    std::memcpy(b, bias + i, static_cast<size_t>(count - i) * sizeof(float));
    rest(values + i, out + i, count - i, _mm256_loadu_ps(a), _mm256_loadu_ps(b));
  }
};

}  // namespace

template <class Out>
void gather_records_scaled(const GatherRecordsScaled<Out>& job) {
  gather_scaled_rows<Scale>(job);
}

#define AEGIS_INSTANTIATE(Out) template void gather_records_scaled(const GatherRecordsScaled<Out>&);
AEGIS_GATHER_RECORDS_SCALED_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::avx2
