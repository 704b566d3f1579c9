#include "kernels/page_query.h"

#include <immintrin.h>

#include "kernels/page_query_blocks.h"

namespace aegis::kernels::avx2 {
namespace {

__m256i load(const void* memory) { return _mm256_loadu_si256(static_cast<const __m256i*>(memory)); }

struct Block {
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
  static uint32_t least(const uint32_t* numbers, uint64_t bits) {
    const __m256i single = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i least = _mm256_set1_epi32(-1);
    for (int part = 0; part < 8; ++part) {
      const __m256i eight = _mm256_set1_epi32(static_cast<int>(bits >> (8 * part) & 0xff));
      const __m256i left_out =
          _mm256_cmpeq_epi32(_mm256_and_si256(eight, single), _mm256_setzero_si256());
      least = _mm256_min_epu32(least, _mm256_or_si256(load(numbers + 8 * part), left_out));
    }
    __m128i four = _mm_min_epu32(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1));
    four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
  }

 private:
  static uint64_t bits_of(__m256i first, __m256i second) {
    return static_cast<uint32_t>(_mm256_movemask_epi8(first)) |
           uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(second))} << 32;
  }
};

}  // namespace

void page_mask(const PageQuery& query, uint64_t* bits) { mask_blocks<Block>(query, bits); }

int64_t oldest_page(const PageQuery& query) { return oldest_in_blocks<Block>(query); }

}  // namespace aegis::kernels::avx2
