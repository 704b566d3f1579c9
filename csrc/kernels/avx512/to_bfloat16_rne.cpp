#include "kernels/to_bfloat16_rne.h"

#include <immintrin.h>

#include <cstring>

#include "kernels/to_bfloat16_runs.h"

namespace aegis::kernels::avx512 {
namespace {

/// By integer arithmetic: the instruction for it (AVX512_BF16) takes denormal numbers for zero.
__m256i rounded(__m512i bits) {
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  const __m512i upper = _mm512_srli_epi32(sum, 16);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(upper, nan, _mm512_set1_epi32(0x7fff)));
}

struct Convert {
  static uint16_t one(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }

  static void dense(const float* x, uint16_t* out, int64_t count) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
      _mm256_storeu_si256((__m256i*)(out + i), rounded(_mm512_loadu_si512(x + i)));
    }
    if (i == count) return;
    const auto rest = static_cast<__mmask16>((1u << (count - i)) - 1);
    _mm256_mask_storeu_epi16(out + i, rest, rounded(_mm512_maskz_loadu_epi32(rest, x + i)));
  }
};

}  // namespace

void to_bfloat16_rne(const ToBfloat16Rne& job, int64_t begin, int64_t end) {
  ToBfloat16Runs<Convert>::convert(job, begin, end);
}

}  // namespace aegis::kernels::avx512
