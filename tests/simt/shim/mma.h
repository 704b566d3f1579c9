// mma.m16n8k32 of signed bytes, by its definition in the PTX ISA: what kernels/cuda/mma_s8.cuh is
// without nvcc. Operands travel between lanes by shuffles.
#pragma once

#include "simt/cuda_shim.h"

namespace aegis::kernels::cuda {

inline void mma_s8(int (&sums)[4], const int (&a)[4], const int (&b)[2]) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = threadIdx.x % 32, group = lane / 4, within = lane % 4;
  for (int half = 0; half < 2; ++half) {
    for (int t = 0; t < 4; ++t) {
      const int upper = __shfl_sync(kAll, a[2 * half], group * 4 + t);
      const int lower = __shfl_sync(kAll, a[2 * half + 1], group * 4 + t);
      for (int j = 0; j < 2; ++j) {
        const int other = __shfl_sync(kAll, b[half], (within * 2 + j) * 4 + t);
        sums[j] = __dp4a(upper, other, sums[j]);
        sums[2 + j] = __dp4a(lower, other, sums[2 + j]);
      }
    }
  }
}

}  // namespace aegis::kernels::cuda
