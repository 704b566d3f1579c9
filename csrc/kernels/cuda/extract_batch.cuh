// extract_batch on the GPU: one thread a token, rows of the grid stride over the batch.
#pragma once

#include "kernels/cuda/simt.cuh"
#include "kernels/extract_batch.h"
#include "kernels/saturate.h"

namespace aegis::kernels::cuda {

constexpr int kExtractThreads = 256;

/// Offsets live on the device and cannot be refused from the host without a wait: a window that
/// does not lie inside the arena's `tokens` reads nothing, and its row becomes -1.
template <class Token, class Input>
__global__ void extract_batch(ExtractBatch<Token, Input> job, int64_t tokens) {
  for (int64_t row = blockIdx.y; row < job.batch; row += gridDim.y) {
    const int64_t offset = job.offsets[row];
    const bool inside = 0 <= offset && offset < tokens - job.block_size;
    const int64_t step = int64_t{blockDim.x} * gridDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < job.block_size;
         i += step) {
      const int64_t at = row * job.block_size + i;
      job.inputs[at] = inside ? saturate<Input>(job.arena[offset + i]) : Input{-1};
      job.targets[at] = inside ? static_cast<int64_t>(job.arena[offset + i + 1]) : int64_t{-1};
    }
  }
}

}  // namespace aegis::kernels::cuda
