// Memory without a name that several processes map piece by piece.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/descriptor.h"
#include "core/mapping.h"

namespace aegis {

/// One memfd of practically endless size. Ranges of it are handed out front to back, never twice;
/// pages exist only where somebody wrote. Nothing stays behind when the last process that knows the
/// descriptor is gone, however it ended.
///
/// All members may be called from any thread and, on the same descriptor, from any process; the
/// only shared state is one lock-free counter, so that a process killed anywhere leaves the others
/// able to go on.
class SharedFile {
 public:
  /// Throws std::runtime_error with the system's reason.
  static std::shared_ptr<SharedFile> create();

  /// The same memory in another process. Takes over `fd`, also when it throws: std::runtime_error
  /// where `fd` is not a SharedFile's descriptor.
  static std::shared_ptr<SharedFile> attach(int fd);

  /// The offset of `bytes` (rounded up to whole pages) that nobody else is given. No page is
  /// allocated. Throws std::runtime_error where there is no room for them, which takes none, and
  /// std::invalid_argument where the rounding overflows.
  uint64_t reserve(size_t bytes);

  /// Maps `bytes` from `offset` on with every page present, so that no page fault comes later; a
  /// range nobody has written reads as zero. Both are multiples of page_size(). Throws
  /// std::runtime_error where memory or addresses run out.
  Mapping map(uint64_t offset, size_t bytes) const;

  /// Copies `bytes` from `offset` on. Throws std::runtime_error with the system's reason.
  void read(uint64_t offset, std::byte* out, size_t bytes) const;

  /// Gives the pages of a range back to the system: whoever still maps it reads zeros.
  void discard(uint64_t offset, uint64_t bytes) const noexcept;

  /// End of what has been reserved by all processes together; the first range begins at first().
  uint64_t reserved() const { return end_->load(std::memory_order_relaxed); }
  static uint64_t first() { return page_size(); }

  int fd() const { return fd_.get(); }

 private:
  using Counter = std::atomic<uint64_t>;
  static_assert(Counter::is_always_lock_free);

  explicit SharedFile(Descriptor fd);

  Descriptor fd_;
  Mapping header_;  // page 0
  Counter* end_;    // in header_; relaxed: it hands out ranges and publishes nothing
};

}  // namespace aegis
