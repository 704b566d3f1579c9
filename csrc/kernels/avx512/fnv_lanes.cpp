#include "kernels/fnv_lanes.h"

#include <immintrin.h>

#include "core/fnv.h"

namespace aegis::kernels::avx512 {

void fnv_lanes(uint32_t* lanes, const std::byte* bytes, int64_t blocks) {
  constexpr int kVectors = kFnvLanes / 16;
  __m512i state[kVectors];
  for (int v = 0; v < kVectors; ++v) state[v] = _mm512_loadu_si512(lanes + 16 * v);
  const __m512i prime = _mm512_set1_epi32(static_cast<int>(Fnv<uint32_t>::kPrime));
  for (const std::byte* end = bytes + blocks * kFnvLanes; bytes != end; bytes += kFnvLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 16 * v));
      state[v] = _mm512_mullo_epi32(_mm512_xor_si512(state[v], _mm512_cvtepu8_epi32(part)), prime);
    }
  }
  for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(lanes + 16 * v, state[v]);
}

}  // namespace aegis::kernels::avx512
