// Typed device memory for kernel tests.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "simt/memory.h"

namespace aegis::simt {

/// `count` elements in guarded device memory. `shift` elements past a 256-byte boundary.
template <class T>
class DeviceBuffer {
 public:
  /// Unwritten: 0x7f bytes, and reading one before a kernel wrote it is an error where races are
  /// looked for.
  DeviceBuffer(std::string name, size_t count, size_t shift = 0)
      : memory_(std::move(name), count * sizeof(T), sizeof(T), shift * sizeof(T)), count_(count) {}

  /// Holds `values`, ready to be read.
  DeviceBuffer(std::string name, const std::vector<T>& values, size_t shift = 0)
      : DeviceBuffer(std::move(name), values.size(), shift) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
    memory_.region().initialised = true;
  }

  T* data() { return reinterpret_cast<T*>(memory_.region().begin); }
  size_t size() const { return count_; }

  /// A copy on the host.
  std::vector<T> values() const {
    std::vector<T> copy(count_);
    if (count_) std::memcpy(copy.data(), memory_.region().begin, count_ * sizeof(T));
    return copy;
  }

 private:
  DeviceMemory memory_;
  size_t count_;
};

}  // namespace aegis::simt
