#include "kernels/page_query.h"

#include <immintrin.h>

#include "kernels/page_query_blocks.h"

namespace aegis::kernels::avx512 {
namespace {

struct Block {
  static uint64_t equal(const uint8_t* bytes, uint8_t mask, uint8_t value) {
    const __m512i masked =
        _mm512_and_si512(_mm512_loadu_si512(bytes), _mm512_set1_epi8(static_cast<char>(mask)));
    return _mm512_cmpeq_epi8_mask(masked, _mm512_set1_epi8(static_cast<char>(value)));
  }
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
};

/// In each of 16 lanes, the least epoch so far and the page it is of.
struct Oldest {
  __m512i epochs = _mm512_set1_epi32(-1);
  __m512i pages = _mm512_set1_epi32(-1);

  void look(const uint32_t* numbers, uint64_t bits, int64_t first) {
    __m512i v[4];
    __mmask16 older[4];
    for (int part = 0; part < 4; ++part) {
      v[part] = _mm512_loadu_si512(numbers + 16 * part);
      older[part] = _mm512_mask_cmplt_epu32_mask(static_cast<__mmask16>(bits >> (16 * part)),
                                                 v[part], epochs);
    }
    if ((older[0] | older[1] | older[2] | older[3]) == 0) return;  // nearly always, later on
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int part = 0; part < 4; ++part) {
      const __mmask16 still = _mm512_mask_cmplt_epu32_mask(older[part], v[part], epochs);
      const auto page = static_cast<int>(first + 16 * part);
      epochs = _mm512_mask_mov_epi32(epochs, still, v[part]);
      pages = _mm512_mask_add_epi32(pages, still, lanes, _mm512_set1_epi32(page));
    }
  }

  int64_t best() const {
    alignas(64) uint32_t epoch[16], page[16];
    _mm512_store_si512(epoch, epochs);
    _mm512_store_si512(page, pages);
    return best_of_lanes(epoch, page, 16);
  }
};

}  // namespace

void page_mask(const PageQuery& query, uint64_t* bits) { mask_blocks<Block>(query, bits); }

int64_t oldest_page(const PageQuery& query) { return oldest_in_blocks<Block, Oldest>(query); }

}  // namespace aegis::kernels::avx512
