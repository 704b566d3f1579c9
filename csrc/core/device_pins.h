// Tells a GPU's driver which of our memory stays where it is, so that copies from it need not wait.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/fork.h"

namespace aegis {

/// Pins memory for one CUDA device, by the driver's own library, which is looked up when it is
/// needed: nothing of CUDA is linked to, and a build without its toolkit can do it too. What the
/// driver has pinned is pinned for every runtime in the process, torch's included.
///
/// All members may be called from any thread. In a forked child, where a driver cannot be used,
/// pin() and unpin() do nothing.
class DevicePins {
 public:
  /// Pins for `device` by way of `library`, libcuda.so.1. Library and the device's primary context
  /// stay until the process ends. Throws std::runtime_error that says what is missing, or the
  /// driver's code.
  static std::shared_ptr<DevicePins> open(int device, const std::string& library);

  DevicePins(const DevicePins&) = delete;
  DevicePins& operator=(const DevicePins&) = delete;

  /// Whether the driver took `bytes` from `data` on, both multiples of a page. Copies from memory
  /// that it refused are as correct, and slower. Cost: about 0.3 s per GB.
  bool pin(std::byte* data, size_t bytes) noexcept;

  /// Before memory that was pinned is unmapped: the driver would go on reading its old pages, also
  /// when other memory has the same address later.
  void unpin(std::byte* data, size_t bytes) noexcept;

  /// False in a forked child.
  bool of_this_process() const noexcept { return generation_ == fork_generation(); }

  struct Stats {
    int64_t ranges;   ///< pinned now
    int64_t bytes;    ///< of them
    int64_t refused;  ///< since construction
  };
  Stats stats() const;

 private:
  struct Driver;
  DevicePins(const Driver* driver, void* context);
  bool enter() const noexcept;
  void leave() const noexcept;

  const Driver* const driver_;
  void* const context_;
  const uint64_t generation_;  // fork_generation() at construction
  // Counters alone; relaxed.
  std::atomic<int64_t> ranges_{0};
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> refused_{0};
};

}  // namespace aegis
