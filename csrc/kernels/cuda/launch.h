// What every CUDA launcher needs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace aegis::kernels::cuda {

constexpr int64_t kMaxGridY = 65535;

/// Turns a refused launch into an exception. Does not wait for the kernel.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(kernel) +
                           ": the launch failed: " + cudaGetErrorString(error));
}

}  // namespace aegis::kernels::cuda
