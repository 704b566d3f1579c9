// Products of signed bytes by a warp's tensor cores (compute capability 8.0 and newer).
#pragma once

#include "kernels/cuda/simt.cuh"

#ifdef __CUDACC__

namespace aegis::kernels::cuda {

/// sums += a · bᵀ by a whole warp: a has 16 rows of 32 bytes, b has 8. With g = lane / 4 and
/// t = lane % 4 a lane holds (PTX ISA, "mma.m16n8k32"):
///   a     bytes 4t ... 4t + 3 of rows g and g + 8, then bytes 16 + 4t ... of the same rows
///   b     bytes 4t ... 4t + 3 of row g, then bytes 16 + 4t ...
///   sums  of rows g, g, g + 8, g + 8 of a with rows 2t, 2t + 1, 2t, 2t + 1 of b
__device__ inline void mma_s8(int (&sums)[4], const int (&a)[4], const int (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace aegis::kernels::cuda

#else
#include "simt/shim/mma.h"
#endif
