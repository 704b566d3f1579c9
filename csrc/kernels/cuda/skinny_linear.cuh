// skinny_linear on the GPU: a warp for each row of weights, which meets all rows of x in one pass.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.cuh"
#include "kernels/skinny_linear.h"

namespace aegis::kernels::cuda {

constexpr int kSkinnyThreads = 128;  // of a block: four warps

/// What a lane loads at once, where rows begin at multiples of it.
template <class Element>
struct alignas(16) SkinnyPack {
  static constexpr int kSize = 16 / sizeof(Element);
  Element elements[kSize];
};

/// `Rows` is at least the job's rows; what is more is computed and dropped.
template <class Element, int Rows>
__global__ void skinny_linear(SkinnyLinear<Element> job) {
  using Pack = SkinnyPack<Element>;
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int64_t first = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const Element* x[Rows];
  uintptr_t starts = 0;
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
    x[row] = job.x + (row < job.rows ? row : 0) * job.k;
    starts |= reinterpret_cast<uintptr_t>(x[row]);
  }
  for (int64_t column = first; column < job.n; column += warps) {
    const Element* weight = job.weight + column * job.weight_stride;
    const bool aligned = (starts | reinterpret_cast<uintptr_t>(weight)) % sizeof(Pack) == 0;
    const int64_t packs = aligned ? job.k / Pack::kSize : 0;
    float sums[Rows] = {};
#pragma unroll 4
    for (int64_t i = lane; i < packs; i += 32) {
      const Pack weights = reinterpret_cast<const Pack*>(weight)[i];
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        const Pack values = reinterpret_cast<const Pack*>(x[row])[i];
#pragma unroll
        for (int j = 0; j < Pack::kSize; ++j) {
          sums[row] += to_float(values.elements[j]) * to_float(weights.elements[j]);
        }
      }
    }
    for (int64_t i = packs * Pack::kSize + lane; i < job.k; i += 32) {
#pragma unroll
      for (int row = 0; row < Rows; ++row) sums[row] += to_float(x[row][i]) * to_float(weight[i]);
    }
    const float bias = job.bias ? to_float(job.bias[column]) : 0.0f;
#pragma unroll
    for (int row = 0; row < Rows; ++row) {
      for (int mask = 16; mask > 0; mask /= 2) {
        sums[row] += __shfl_xor_sync(0xffffffffu, sums[row], mask);
      }
      if (lane == 0 && row < job.rows) {
        job.out[row * job.n + column] = from_float<Element>(sums[row] + bias);
      }
    }
  }
}

}  // namespace aegis::kernels::cuda
