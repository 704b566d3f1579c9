// TMA and the barriers in shared memory that count what it copied: instructions of compute
// capability 9.0 and newer.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/simt.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

namespace aegis::kernels::cuda {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// A phase of the barrier ends with `arrivals`, and with the bytes that were expected of it.
__device__ inline void barrier_init(uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

/// Makes initialised barriers visible to TMA and to the tensor cores.
__device__ inline void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

/// Arrives, and lets the phase wait for so many bytes.
__device__ inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

/// Waits until a phase of this parity has ended.
__device__ inline void barrier_wait(uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Starts the copy of the tile at (column, row) of the mapped matrix, which `barrier` will count.
__device__ inline void load_tile(const CUtensorMap& map, void* to, uint64_t* barrier,
                                 int32_t column, int32_t row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}

}  // namespace aegis::kernels::cuda

#endif
