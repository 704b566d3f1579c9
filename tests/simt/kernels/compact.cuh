// Keeps the values that are not negative, in order: one block, an exclusive scan over its warps.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.cuh"

namespace aegis::simt::examples {

/// `kept` has room for `count` values; *kept_count becomes how many there are. Launched with one
/// block of kThreads, a multiple of 32.
template <int kThreads>
__global__ void compact(const int* values, int64_t count, int* kept, int64_t* kept_count) {
  constexpr int kWarps = kThreads / 32;
  AEGIS_SHARED(int, kept_by_warp, [kWarps]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t written = 0;
  for (int64_t base = 0; base < count; base += kThreads) {
    const int64_t at = base + threadIdx.x;
    const int value = at < count ? values[at] : -1;
    const unsigned keepers = __ballot_sync(0xffffffffu, value >= 0);
    if (lane == 0) kept_by_warp[warp] = __popc(keepers);
    __syncthreads();
    int before = __popc(keepers & ((1u << lane) - 1)), total = 0;
    for (int other = 0; other < kWarps; ++other) {
      if (other < warp) before += kept_by_warp[other];
      total += kept_by_warp[other];
    }
    if (value >= 0) kept[written + before] = value;
    written += total;
    __syncthreads();  // before the next tile's counts
  }
  if (threadIdx.x == 0) *kept_count = written;
}

}  // namespace aegis::simt::examples
