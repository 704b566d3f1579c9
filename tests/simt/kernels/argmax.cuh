// The index of the largest value of each row: a block a row, shuffles, then shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.cuh"

namespace aegis::simt::examples {

struct Best {
  float value;
  int index;

  /// The larger value wins, the lower index among equals.
  __device__ bool loses_to(float other_value, int other_index) const {
    return other_value > value || (other_value == value && other_index < index);
  }
};

__device__ inline Best best_of_warp(Best best) {
  for (int delta = 16; delta > 0; delta /= 2) {
    const float value = __shfl_down_sync(0xffffffffu, best.value, delta);
    const int index = __shfl_down_sync(0xffffffffu, best.index, delta);
    if (best.loses_to(value, index)) best = {value, index};
  }
  return best;
}

/// `values` is (rows, columns) with columns >= 1 and no NaN; kThreads is a multiple of 32.
template <int kThreads>
__global__ void argmax(const float* values, int64_t rows, int columns, int* indices) {
  constexpr int kWarps = kThreads / 32;
  AEGIS_SHARED(Best, bests, [kWarps]);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* mine = values + row * columns;
    Best best{-INFINITY, 0x7fffffff};
    for (int i = threadIdx.x; i < columns; i += kThreads) {
      if (best.loses_to(mine[i], i)) best = {mine[i], i};
    }
    best = best_of_warp(best);
    if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x < 32) {
      best = threadIdx.x < kWarps ? bests[threadIdx.x] : Best{-INFINITY, 0x7fffffff};
      best = best_of_warp(best);
      if (threadIdx.x == 0) indices[row] = best.index;
    }
    __syncthreads();  // before the next row's bests
  }
}

}  // namespace aegis::simt::examples
