// What every CUDA kernel includes first, so that the same text compiles for a GPU and, in the
// tests, as plain C++ that runs on a CPU (docs/notes/simt.md).
//
// Rules for kernels:
//  1. A kernel is a `__global__` template or function in `<op>.cuh`, without torch, CUB,
//  cooperative
//     groups or inline PTX. Code that only hardware can run (TMA, wgmma) sits in small wrappers,
//     and its index, tile and scale arithmetic in host-device functions that have tests of their
//     own.
//  2. Shared memory is declared as AEGIS_SHARED(T, name, [N]) or AEGIS_DYNAMIC_SHARED(T, name), at
//     the top of the kernel. It holds garbage until it is written. T has no comma in it: alias it.
//  3. Every thread of a block reaches every __syncthreads(), on the same line; no return before the
//     last one. Lanes named in a mask reach the same warp intrinsic with the same mask.
//  4. Shuffles, votes and matches order no memory: __syncwarp() does, between the lanes of its
//  mask.
//     No code relies on lanes of a warp running in step, and none uses __activemask().
//  5. No block waits for another. A block may read what another wrote only after __threadfence()
//     and an atomic that tells it to.
//  6. float16, bfloat16 and float8 travel as raw bits and are converted by kernels/convert.h.
//  7. 64-bit atomics and shuffles take long long types, as CUDA declares them, not int64_t.
//  8. The launcher in `<op>.cu` goes through launch() of kernels/cuda/launch.h: it works in both
//     worlds, so the tests run the launcher's own grid and block.
// The test is tests/simt/test_<op>.cpp, declared with aegis_simt_test(<op>) in cmake/testing.cmake.
#pragma once

#ifdef __CUDACC__

#include <cuda_runtime_api.h>

/// AEGIS_SHARED(float, sums, [32]): a shared array, 16-byte aligned; without extent, one variable.
#define AEGIS_SHARED(T, name, ...) __shared__ __align__(16) T name __VA_ARGS__

/// AEGIS_DYNAMIC_SHARED(float, tile): `float* tile`, 16-byte aligned, of the size that the launch
/// gives. All uses in one kernel name the same memory.
#define AEGIS_DYNAMIC_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char aegis_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(aegis_dynamic_shared)

#else
#include "simt/cuda_shim.h"  // lies in tests/: only the tests compile kernels without nvcc
#endif
