// float8_quantize on the GPU: a warp, or for long groups a block, for each group.
#pragma once

#include <cstdint>

#include "kernels/cuda/float8_quantize.h"
#include "kernels/cuda/simt.cuh"

namespace aegis::kernels::cuda {

constexpr int kFloat8Threads = 256;  // of a block

/// The largest of a value in all lanes of the warp.
__device__ inline float float8_warp_max(float value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, mask));
  }
  return value;
}

/// `Warps` of a block share a group: one, or all of them.
template <class Element, int Warps>
__global__ void float8_quantize(Float8Quantize<Element> job, BFloat16* spread) {
  static_assert(Warps == 1 || Warps == kFloat8Threads / 32);
  AEGIS_SHARED(float, largest, [kFloat8Threads / 32]);
  constexpr int kTeam = 32 * Warps, kTeams = kFloat8Threads / kTeam;
  const int lane = threadIdx.x % kTeam;
  const int64_t all = job.rows * job.groups;
  // Teams of a block make the same number of turns, so that all threads meet at the barriers.
  for (int64_t first = int64_t{blockIdx.x} * kTeams; first < all;
       first += int64_t{gridDim.x} * kTeams) {
    const int64_t i = first + threadIdx.x / kTeam;
    const int64_t row = i / job.groups, at = i % job.groups * job.group;
    const int64_t left = job.k - at;
    const int64_t count = i < all ? (left < job.group ? left : job.group) : 0;
    const Element* x = job.x + row * job.k + at;
    float amax = 0;
    for (int64_t j = lane; j < count; j += kTeam) {
      const float magnitude = fabsf(to_float(x[j]));
      if (magnitude <= 0x1.fffffep127f) amax = fmaxf(amax, magnitude);  // finite
    }
    amax = float8_warp_max(amax);
    if constexpr (Warps > 1) {
      __syncthreads();  // the turn before has been read
      if (lane % 32 == 0) largest[lane / 32] = amax;
      __syncthreads();
      for (int warp = 0; warp < Warps; ++warp) amax = fmaxf(amax, largest[warp]);
    }
    const float scale = float8_scale(amax);
    if (lane == 0 && i < all) job.scales[i] = scale;
    uint8_t* values = job.values + row * job.k + at;
    for (int64_t j = lane; j < count; j += kTeam) {
      const uint8_t code = float_to_e4m3(to_float(x[j]) / scale);
      values[j] = code;
      if (spread) {
        spread[row * float8_spread_stride(job.k) + at + j] =
            from_float<BFloat16>(e4m3_to_float(code));
      }
    }
  }
}

}  // namespace aegis::kernels::cuda
