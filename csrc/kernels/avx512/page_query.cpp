#include "kernels/page_query.h"

#include <immintrin.h>

#include "kernels/page_query_blocks.h"

namespace aegis::kernels::avx512 {
namespace {

struct Block {
  static uint64_t within(const uint8_t* bytes, uint8_t least, uint8_t most) {
    const __m512i v = _mm512_loadu_si512(bytes);
    return _mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(static_cast<char>(least))) &
           _mm512_cmple_epu8_mask(v, _mm512_set1_epi8(static_cast<char>(most)));
  }
  static uint64_t within(const uint32_t* numbers, uint32_t least, uint32_t most) {
    const __m512i low = _mm512_set1_epi32(static_cast<int>(least));
    const __m512i high = _mm512_set1_epi32(static_cast<int>(most));
    uint64_t bits = 0;
    for (int part = 0; part < 4; ++part) {
      const __m512i v = _mm512_loadu_si512(numbers + 16 * part);
      const __mmask16 inside =
          _mm512_mask_cmple_epu32_mask(_mm512_cmpge_epu32_mask(v, low), v, high);
      bits |= uint64_t{inside} << (16 * part);
    }
    return bits;
  }
  static uint32_t least(const uint32_t* numbers, uint64_t bits) {
    __m512i least = _mm512_set1_epi32(-1);
    for (int part = 0; part < 4; ++part) {
      const auto here = static_cast<__mmask16>(bits >> (16 * part));
      least = _mm512_mask_min_epu32(least, here, least, _mm512_loadu_si512(numbers + 16 * part));
    }
    return _mm512_reduce_min_epu32(least);
  }
};

}  // namespace

void page_mask(const PageQuery& query, uint64_t* bits) { mask_blocks<Block>(query, bits); }

int64_t oldest_page(const PageQuery& query) { return oldest_in_blocks<Block>(query); }

}  // namespace aegis::kernels::avx512
