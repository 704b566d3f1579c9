// What every CUDA kernel includes first, so that the same text compiles for a GPU and, in the
// tests, as plain C++ that runs on a CPU (docs/notes/simt.md).
//
// Rules for kernels:
//  1. A kernel is a `__global__` function or template in `<op>.cuh`: no torch, CUB, cooperative
//     groups or inline PTX. Code that only hardware runs (TMA, wgmma) sits in small wrappers; its
//     index, tile and scale arithmetic in host-device functions with tests of their own.
//  2. Shared memory is AEGIS_SHARED(T, name, [N]) or AEGIS_DYNAMIC_SHARED(T, name), declared at
//     the top of the kernel. It holds garbage until written. Give a T with a comma an alias.
//  3. Every thread of a block reaches every __syncthreads(), on the same line, and none returns
//     before the last. Lanes named in a mask reach the same intrinsic with the same mask.
//  4. Shuffles, votes and matches order no memory; __syncwarp() does, between the lanes of its
//     mask. No code relies on lanes running in step, and none uses __activemask().
//  5. No block waits for another. A block reads what another wrote only after __threadfence()
//     and an atomic that tells it to.
//  6. float16, bfloat16 and float8 travel as raw bits; kernels/convert.h converts them.
//  7. 64-bit atomics and shuffles take long long types, as CUDA declares them, not int64_t.
//  8. The launcher in `<op>.cu` goes through launch() of kernels/cuda/launch.h. It works in both
//     worlds, so the tests run the launcher's own grid and block.
// The test is tests/simt/test_<op>.cpp, declared by aegis_simt_test(<op>) in cmake/simt.cmake.
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
