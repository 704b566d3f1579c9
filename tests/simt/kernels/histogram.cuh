// How often each token occurs: bins in shared memory, added to the global ones at the end.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.cuh"

namespace aegis::simt::examples {

/// Adds to `bins` (bin_count); tokens beyond it are not counted. Dynamic shared memory: 4 bytes a
/// bin.
__global__ void histogram(const uint16_t* tokens, int64_t count, int bin_count, unsigned* bins) {
  AEGIS_DYNAMIC_SHARED(unsigned, mine);
  for (int i = threadIdx.x; i < bin_count; i += blockDim.x) mine[i] = 0;
  __syncthreads();
  const int64_t step = int64_t{blockDim.x} * gridDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (tokens[i] < bin_count) atomicAdd(&mine[tokens[i]], 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < bin_count; i += blockDim.x) {
    if (mine[i] != 0) atomicAdd(&bins[i], mine[i]);
  }
}

}  // namespace aegis::simt::examples
