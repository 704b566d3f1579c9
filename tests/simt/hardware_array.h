// An array where the kernels of hardware.cu run: on the GPU, or in the executor's device memory.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef __CUDACC__

#include <cuda_runtime_api.h>

namespace aegis::simt {

inline void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

template <class T>
class HardwareArray {
 public:
  explicit HardwareArray(const std::vector<T>& values) : count_(values.size()) {
    check_cuda(cudaMalloc(&data_, count_ * sizeof(T)));
    check_cuda(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~HardwareArray() { cudaFree(data_); }
  HardwareArray(const HardwareArray&) = delete;
  HardwareArray& operator=(const HardwareArray&) = delete;

  T* data() { return data_; }
  /// Waits for the kernels that were launched.
  std::vector<T> values() const {
    std::vector<T> copy(count_);
    check_cuda(cudaMemcpy(copy.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return copy;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

}  // namespace aegis::simt

#else

#include "simt/device_buffer.h"

namespace aegis::simt {

template <class T>
class HardwareArray : public DeviceBuffer<T> {
 public:
  explicit HardwareArray(const std::vector<T>& values) : DeviceBuffer<T>("array", values) {}
};

}  // namespace aegis::simt

#endif
