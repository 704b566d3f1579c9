// What every CUDA launcher needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/cuda/simt.cuh"

struct CUstream_st;

namespace aegis::kernels::cuda {

constexpr int64_t kMaxGridY = 65535;

#ifdef __CUDACC__

/// Turns a refused call into an exception. Does not wait for the kernel.
inline void check_launch(const char* kernel, cudaError_t error = cudaGetLastError()) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(kernel) +
                           ": the launch failed: " + cudaGetErrorString(error));
}

/// Queues `kernel` on `stream` with `dynamic_shared` bytes of shared memory and does not wait for
/// it. Throws std::runtime_error, which names `name`, where the launch is refused.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t dynamic_shared, CUstream_st* stream, Arguments&&... arguments) {
  constexpr size_t kWithoutAsking = 48 * 1024;
  if (dynamic_shared > kWithoutAsking) {
    check_launch(name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(dynamic_shared)));
  }
  kernel<<<grid, block, dynamic_shared, stream>>>(std::forward<Arguments>(arguments)...);
  check_launch(name);
}

#else

/// The same on the tests' executor, at once.
template <class... Parameters, class... Arguments>
void launch(const char*, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t dynamic_shared, CUstream_st*, Arguments&&... arguments) {
  simt::launch({grid, block, dynamic_shared}, kernel, std::forward<Arguments>(arguments)...);
}

#endif

}  // namespace aegis::kernels::cuda
