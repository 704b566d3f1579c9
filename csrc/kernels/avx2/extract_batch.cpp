#include "kernels/extract_batch.h"

#include <immintrin.h>

#include <cstring>

#include "kernels/extract_rows.h"
#include "kernels/saturate.h"

namespace aegis::kernels::avx2 {
namespace {

__m128i load_int(const void* at) {
  int value;
  std::memcpy(&value, at, sizeof value);
  return _mm_cvtsi32_si128(value);
}

// Four tokens become one register of int64_t.
__m256i four(const uint8_t* t) { return _mm256_cvtepu8_epi64(load_int(t)); }
__m256i four(const uint16_t* t) {
  return _mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i*)t));
}
__m256i four(const uint32_t* t) {
  return _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i*)t));
}
__m256i four(const int32_t* t) { return _mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i*)t)); }
__m256i four(const int64_t* t) { return _mm256_loadu_si256((const __m256i*)t); }

/// Clamps int64_t lanes to the range of int32_t, which AVX2 has no instruction for.
__m256i clamp_to_int32(__m256i v) {
  const __m256i high = _mm256_set1_epi64x(INT32_MAX), low = _mm256_set1_epi64x(INT32_MIN);
  v = _mm256_blendv_epi8(v, high, _mm256_cmpgt_epi64(v, high));
  return _mm256_blendv_epi8(v, low, _mm256_cmpgt_epi64(low, v));
}

template <class Token>
void store(int64_t* out, __m256i values) {
  _mm256_storeu_si256((__m256i*)out, values);
}
template <class Token>
void store(int32_t* out, __m256i values) {
  if constexpr (sizeof(Token) == 8 || std::is_same_v<Token, uint32_t>)
    values = clamp_to_int32(values);
  const __m256i low_halves = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  _mm_storeu_si128((__m128i*)out,
                   _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(values, low_halves)));
}

struct Widen {
  template <class Token, class Out>
  static void row(const Token* tokens, Out* out, int64_t count) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) store<Token>(out + i, four(tokens + i));
    for (; i < count; ++i) out[i] = saturate<Out>(tokens[i]);
  }
};

}  // namespace

template <class Token, class Input>
void extract_batch(const ExtractBatch<Token, Input>& job) {
  extract_rows<Widen>(job);
}

#define AEGIS_INSTANTIATE(Token, Input) \
  template void extract_batch(const ExtractBatch<Token, Input>&);
AEGIS_EXTRACT_BATCH_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::avx2
