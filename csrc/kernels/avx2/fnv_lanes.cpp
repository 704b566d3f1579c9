#include "kernels/fnv_lanes.h"

#include <immintrin.h>

#include "core/fnv.h"

namespace aegis::kernels::avx2 {

void fnv_lanes(uint32_t* lanes, const std::byte* bytes, int64_t blocks) {
  constexpr int kVectors = kFnvLanes / 8;
  __m256i state[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    state[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes + 8 * v));
  }
  const __m256i prime = _mm256_set1_epi32(static_cast<int>(Fnv<uint32_t>::kPrime));
  for (const std::byte* end = bytes + blocks * kFnvLanes; bytes != end; bytes += kFnvLanes) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __m128i part = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + 8 * v));
      state[v] = _mm256_mullo_epi32(_mm256_xor_si256(state[v], _mm256_cvtepu8_epi32(part)), prime);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes + 8 * v), state[v]);
  }
}

}  // namespace aegis::kernels::avx2
