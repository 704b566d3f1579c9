// Keeps the process alive when a mapped file is cut short.
//
// Reading a mapped page beyond the end of its file raises SIGBUS, which kills the process. A range
// under guard gets zeroed memory there instead, and the part of it that was hit is marked damaged.
// Whoever reads must therefore look at damaged() after reading and before using what was read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace aegis {

/// A range of mapped memory under guard, in parts (one per file). Registered for its lifetime; it
/// must end before the memory is unmapped. Neither copied nor moved: the signal handler holds its
/// address.
///
/// Threads: damaged() may be called from any thread. The handler runs on the thread that faults,
/// which by holding the memory also holds this object.
class FaultGuard {
 public:
  /// Guards [begin, begin + bytes). `part_starts` are the addresses where the parts begin,
  /// ascending, the first equal to `begin`, all at multiples of page_size().
  ///
  /// Installs the SIGBUS handler in front of whatever handler is there: see arm().
  /// Throws std::runtime_error when kCapacity ranges are guarded already.
  FaultGuard(std::byte* begin, size_t bytes, std::vector<uintptr_t> part_starts);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  /// Whether a page of this part could not be read, now or earlier. Never goes back to false.
  bool damaged(size_t part) const { return damaged_[part].load(std::memory_order_acquire); }

  static constexpr size_t kCapacity = 4096;

 private:
  friend struct FaultTable;

  uintptr_t begin_;
  uintptr_t end_;
  std::vector<uintptr_t> part_starts_;
  std::unique_ptr<std::atomic<bool>[]> damaged_;
  size_t slot_ = 0;
};

/// Puts the SIGBUS handler first again if another one was installed since, keeping that one as the
/// next in line. Costs one system call. Called when a range is registered, and worth calling at
/// quiet moments (each epoch).
///
/// The handler's contract with others:
///  - A fault outside every guarded range belongs to the handler that was there before: it is put
///    back, and the instruction runs and faults again, in its hands. If the fault comes back here
///    nevertheless, the default action follows, so that no fault is raised for ever.
///  - A handler installed later that passes a fault on by raise(SIGBUS), as Python's faulthandler
///    does, loses the address; such a signal is passed over, and the instruction faults once more.
///    After 64 in a row without a fault in a guarded range, or once a fault was given back to the
///    handler before, they are handled like any other.
///  - SIGBUS sent by another process goes to the handler that was there before.
void arm_fault_handler();

}  // namespace aegis
