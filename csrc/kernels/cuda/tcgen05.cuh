// Tensor cores of compute capability 10.x and their memory: tcgen05.
#pragma once

#include <cstdint>

#include "kernels/cuda/tma.cuh"

// nvcc 12.8 tells of 100a alone; later ones of every architecture of the family, as 1000 and 1030.
#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
#define AEGIS_TCGEN05
#elif defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#if __CUDA_ARCH_FAMILY_SPECIFIC__ / 100 == 10
#define AEGIS_TCGEN05
#endif
#endif

#ifdef AEGIS_TCGEN05

namespace aegis::kernels::cuda {

/// True in one lane of the warp, which all lanes ask.
__device__ inline bool one_lane() {
  uint32_t mine = 0;
  asm volatile(
      "{\n"
      ".reg .pred chosen;\n"
      "elect.sync _|chosen, 0xffffffff;\n"
      "@chosen mov.u32 %0, 1;\n"
      "}\n"
      : "+r"(mine));
  return mine != 0;
}

/// By a whole warp: `columns` of tensor memory, whose address is written to `address` in shared
/// memory. Waits for other blocks of the multiprocessor to give some back.
__device__ inline void tensor_memory_take(uint32_t* address, uint32_t columns) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                   shared_address(address)),
               "r"(columns)
               : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

/// By the warp that took it, when no more is in use.
__device__ inline void tensor_memory_give_back(uint32_t address, uint32_t columns) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns)
               : "memory");
}

// Around any other synchronisation between threads that use tensor memory.
__device__ inline void tensor_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ inline void tensor_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/// By one thread: sums = a · bᵀ of 32 E4M3 values of each row, added to what was there unless
/// `fresh`. Products of one thread are added in its order.
__device__ inline void tensor_multiply(uint32_t sums, uint64_t a, uint64_t b, uint32_t instruction,
                                       bool fresh) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], %1, %2, %3, add;\n"
      "}\n" ::"r"(sums),
      "l"(a), "l"(b), "r"(instruction), "r"(static_cast<int>(!fresh))
      : "memory");
}

/// By the thread that multiplied: arrives at the barrier when all that it began so far is done.
__device__ inline void tensor_commit(uint64_t* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   shared_address(barrier))
               : "memory");
}

/// By a whole warp: lane l gets 32 neighbouring columns of lane l behind `address`.
__device__ inline void tensor_read(float (&v)[32], uint32_t address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];\n"
      "tcgen05.wait::ld.sync.aligned;"
      : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]),
        "=f"(v[7]), "=f"(v[8]), "=f"(v[9]), "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]),
        "=f"(v[14]), "=f"(v[15]), "=f"(v[16]), "=f"(v[17]), "=f"(v[18]), "=f"(v[19]), "=f"(v[20]),
        "=f"(v[21]), "=f"(v[22]), "=f"(v[23]), "=f"(v[24]), "=f"(v[25]), "=f"(v[26]), "=f"(v[27]),
        "=f"(v[28]), "=f"(v[29]), "=f"(v[30]), "=f"(v[31])
      : "r"(address)
      : "memory");
}

}  // namespace aegis::kernels::cuda

#endif
