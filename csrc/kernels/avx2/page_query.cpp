#include "kernels/page_query.h"

#include <immintrin.h>

#include "kernels/page_query_blocks.h"

namespace aegis::kernels::avx2 {
namespace {

__m256i load(const void* memory) { return _mm256_loadu_si256(static_cast<const __m256i*>(memory)); }

struct Block {
  static uint64_t equal(const uint8_t* bytes, uint8_t mask, uint8_t value) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    const __m256i v = _mm256_set1_epi8(static_cast<char>(value));
    return bits_of(_mm256_cmpeq_epi8(_mm256_and_si256(load(bytes), m), v),
                   _mm256_cmpeq_epi8(_mm256_and_si256(load(bytes + 32), m), v));
  }
  static uint64_t within(const uint8_t* bytes, uint8_t least, uint8_t most) {
    const __m256i low = _mm256_set1_epi8(static_cast<char>(least));
    const __m256i high = _mm256_set1_epi8(static_cast<char>(most));
    const auto inside = [&](__m256i v) {
      return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_max_epu8(v, low), v),
                              _mm256_cmpeq_epi8(_mm256_min_epu8(v, high), v));
    };
    return bits_of(inside(load(bytes)), inside(load(bytes + 32)));
  }
  static uint64_t within(const uint32_t* numbers, uint32_t least, uint32_t most) {
    const __m256i low = _mm256_set1_epi32(static_cast<int>(least));
    const __m256i high = _mm256_set1_epi32(static_cast<int>(most));
    uint64_t bits = 0;
    for (int part = 0; part < 8; ++part) {
      const __m256i v = load(numbers + 8 * part);
      const __m256i inside = _mm256_and_si256(_mm256_cmpeq_epi32(_mm256_max_epu32(v, low), v),
                                              _mm256_cmpeq_epi32(_mm256_min_epu32(v, high), v));
      const auto eight = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(inside)));
      bits |= uint64_t{eight} << (8 * part);
    }
    return bits;
  }

 private:
  static uint64_t bits_of(__m256i first, __m256i second) {
    return static_cast<uint32_t>(_mm256_movemask_epi8(first)) |
           uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(second))} << 32;
  }
};

/// In each of 8 lanes, the least epoch so far and the page it is of.
struct Oldest {
  __m256i epochs = _mm256_set1_epi32(-1);
  __m256i pages = _mm256_set1_epi32(-1);

  void look(const uint32_t* numbers, uint64_t bits, int64_t first) {
    const __m256i single = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const auto older = [&](int part, __m256i v) {
      const __m256i eight = _mm256_set1_epi32(static_cast<int>(bits >> (8 * part) & 0xff));
      const __m256i wanted = _mm256_cmpeq_epi32(_mm256_and_si256(eight, single), single);
      const __m256i at_least = _mm256_cmpeq_epi32(_mm256_max_epu32(v, epochs), v);
      return _mm256_andnot_si256(at_least, wanted);
    };
    __m256i any = _mm256_setzero_si256();
    for (int part = 0; part < 8; ++part) {
      any = _mm256_or_si256(any, older(part, load(numbers + 8 * part)));
    }
    if (_mm256_testz_si256(any, any)) return;  // nearly always, later on
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int part = 0; part < 8; ++part) {
      const __m256i v = load(numbers + 8 * part);
      const __m256i still = older(part, v);
      const __m256i here =
          _mm256_add_epi32(lanes, _mm256_set1_epi32(static_cast<int>(first + 8 * part)));
      epochs = _mm256_blendv_epi8(epochs, v, still);
      pages = _mm256_blendv_epi8(pages, here, still);
    }
  }

  int64_t best() const {
    alignas(32) uint32_t epoch[8], page[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(epoch), epochs);
    _mm256_store_si256(reinterpret_cast<__m256i*>(page), pages);
    return best_of_lanes(epoch, page, 8);
  }
};

}  // namespace

void page_mask(const PageQuery& query, uint64_t* bits) { mask_blocks<Block>(query, bits); }

int64_t oldest_page(const PageQuery& query) { return oldest_in_blocks<Block, Oldest>(query); }

}  // namespace aegis::kernels::avx2
