#include "kernels/extract_batch.h"

#include <immintrin.h>

#include "kernels/extract_rows.h"
#include "kernels/saturate.h"

namespace aegis::kernels::avx512 {
namespace {

// Eight tokens become one register of int64_t.
__m512i eight(const uint8_t* t) { return _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i*)t)); }
__m512i eight(const uint16_t* t) {
  return _mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i*)t));
}
__m512i eight(const uint32_t* t) {
  return _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i*)t));
}
__m512i eight(const int32_t* t) {
  return _mm512_cvtepi32_epi64(_mm256_loadu_si256((const __m256i*)t));
}
__m512i eight(const int64_t* t) { return _mm512_loadu_si512(t); }

void store(int64_t* out, __m512i values) { _mm512_storeu_si512(out, values); }
void store(int32_t* out, __m512i values) {
  _mm256_storeu_si256((__m256i*)out, _mm512_cvtsepi64_epi32(values));  // saturates
}

struct Widen {
  template <class Token, class Out>
  static void row(const Token* tokens, Out* out, int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) store(out + i, eight(tokens + i));
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

}  // namespace aegis::kernels::avx512
