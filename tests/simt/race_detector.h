// Looks at every access of the kernel's threads for races, reads of unwritten memory, accesses
// outside of regions and misaligned ones. It sees what tsan_hooks.cpp tells it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "simt/memory.h"
#include "simt/warp.h"

namespace aegis::simt {

enum class AccessKind : uint8_t { read, write, atomic };

/// Two accesses to a byte race when they come from two threads, one of them writes, not both are
/// atomic, and no order exists between them. Order within a block: a barrier of the block, or a
/// __syncwarp whose mask holds both lanes, directly or through others (a vector clock a thread, of
/// the lanes of its warp). Between blocks of a launch there is no order; a __threadfence anywhere
/// in the launch lifts all checks between blocks but the one for two plain writes.
class RaceDetector {
 public:
  void begin_launch();
  void begin_block();
  void on_barrier(const std::source_location& where);
  /// Lanes of `group`, of the warp that begins at thread `first`, have met in a __syncwarp.
  void on_syncwarp(uint32_t first, uint32_t group);
  void on_fence() { fenced_ = true; }

  /// The running thread touches `bytes` at `address`, in one instruction where `whole` (it must
  /// then be aligned); `code` tells places in the program apart.
  void on_access(const void* address, size_t bytes, bool whole, AccessKind kind, const void* code);

 private:
  /// Which lanes' clocks a thread has seen.
  using Known = std::array<uint32_t, kWarp>;

  bool conflict(const Access& before, const Access& now, bool both_write) const;
  void look(Region& region, const char* address, AccessKind kind, const Access& now,
            const void* code);
  void report(const Region& region, const char* address, AccessKind kind, const Access& before,
              bool before_writes) const;

  std::vector<Known> known_ = std::vector<Known>(1024, Known{});
  std::vector<uint32_t> clock_ = std::vector<uint32_t>(1024, 1);
  uint32_t epoch_ = 0;
  uint32_t block_epoch_ = 0;   // the block's first
  uint32_t launch_epoch_ = 0;  // the launch's first
  bool fenced_ = false;
  std::string since_;  // what began the interval, for messages
};

RaceDetector& detector();

/// Called when a program with instrumented kernels starts; detects_races() is true from then on.
void enable_detector();

}  // namespace aegis::simt
