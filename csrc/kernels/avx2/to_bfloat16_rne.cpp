#include "kernels/to_bfloat16_rne.h"

#include <immintrin.h>

#include <cstring>

#include "kernels/to_bfloat16_runs.h"

namespace aegis::kernels::avx2 {
namespace {

/// In the lower halves of eight words.
__m256i rounded(__m256i bits) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7fff), nan);
}

__m256i load(const float* x) { return _mm256_loadu_si256((const __m256i*)x); }

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
      // Packing goes by halves of the register: the middle two quarters change places.
      const __m256i packed = _mm256_packus_epi32(rounded(load(x + i)), rounded(load(x + i + 8)));
      _mm256_storeu_si256((__m256i*)(out + i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    for (; i < count; ++i) out[i] = one(x[i]);
  }
};

}  // namespace

void to_bfloat16_rne(const ToBfloat16Rne& job, int64_t begin, int64_t end) {
  ToBfloat16Runs<Convert>::convert(job, begin, end);
}

}  // namespace aegis::kernels::avx2
