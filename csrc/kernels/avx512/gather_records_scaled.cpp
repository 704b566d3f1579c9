#include "kernels/gather_records_scaled.h"

#include <immintrin.h>

#include "kernels/gather_rows.h"
#include "kernels/mask_avx512.h"

namespace aegis::kernels::avx512 {
namespace {

void store(float* out, __m512 values) { _mm512_storeu_ps(out, values); }
void stream(float* out, __m512 values) { _mm512_stream_ps(out, values); }
void store(float* out, __mmask16 some, __m512 values) { _mm512_mask_storeu_ps(out, some, values); }

/// To bfloat16 by integer arithmetic: the instruction for it takes denormals for zero.
__m256i bfloat16(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
void store(uint16_t* out, __m512 values) { _mm256_storeu_si256((__m256i*)out, bfloat16(values)); }
void stream(uint16_t* out, __m512 values) { _mm256_stream_si256((__m256i*)out, bfloat16(values)); }
void store(uint16_t* out, __mmask16 some, __m512 values) {
  _mm256_mask_storeu_epi16(out, some, bfloat16(values));
}

__m512 scaled(__m128i values, __m512 scale, __m512 bias) {
  const __m512 wide = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(values));
  return _mm512_add_ps(_mm512_mul_ps(wide, scale), bias);
}

template <bool kStream>
struct Scale {
  template <class Out>
  static void put(Out* out, __m512 values) {
    kStream ? stream(out, values) : store(out, values);
  }

  template <class Out>
  static void channel(const uint8_t* values, Out* out, int64_t count, float scale, float bias) {
    const __m512 a = _mm512_set1_ps(scale), b = _mm512_set1_ps(bias);
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
      put(out + i, scaled(_mm_loadu_si128((const __m128i*)(values + i)), a, b));
    }
    if (i == count) return;
    const __mmask16 rest = first_of_16(count - i);
    store(out + i, rest, scaled(_mm_maskz_loadu_epi8(rest, values + i), a, b));
  }

  template <class Out>
  static void each(const uint8_t* values, Out* out, int64_t count, const float* scale,
                   const float* bias) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
      put(out + i, scaled(_mm_loadu_si128((const __m128i*)(values + i)), _mm512_loadu_ps(scale + i),
                          _mm512_loadu_ps(bias + i)));
    }
    if (i == count) return;
    const __mmask16 rest = first_of_16(count - i);
    store(out + i, rest,
          scaled(_mm_maskz_loadu_epi8(rest, values + i), _mm512_maskz_loadu_ps(rest, scale + i),
                 _mm512_maskz_loadu_ps(rest, bias + i)));
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

}  // namespace aegis::kernels::avx512
