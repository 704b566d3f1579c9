// Reused memory for one tensor of a batch, of whatever size batches turn out to need.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/child_watch.h"
#include "core/mapping.h"
#include "core/shared_file.h"

namespace aegis {

/// Slots that follow what batches lately needed: large enough for all but the odd one out of the
/// last kHistory, and at most about twice that. A slot that no longer fits, or that was not in use
/// lately, goes back to the system instead of to the next batch, so that one huge batch does not
/// make every slot huge.
///
/// A SlotPool has slots of one size and is for batches of known size; a lane is for those that
/// Python makes, one lane for each large tensor, so that a tensor the user keeps holds the memory
/// of that tensor alone.
///
/// Slots lie in memory of this process, or in a SharedFile: then a worker process may be asked to
/// write one, and may hand over one that it made itself. What a forked child inherits of those is
/// the memory itself, no copy of it: a slot whose contents it may look at is not written again, by
/// anybody, before the child has ended.
///
/// All members may be called from any thread. In a forked child all but rest() throw
/// std::runtime_error: slots in a SharedFile are still the parent's to write, and the lock may be
/// held for ever.
class SlotLane final : public std::enable_shared_from_this<SlotLane>, private ForkListener {
 public:
  class Slot;
  /// Shared ownership of one slot. When the last copy goes, on whatever thread, the slot returns to
  /// its lane. Keeps the lane alive. In a forked child nothing is returned: the lane there is a
  /// copy whose lock may be held for ever.
  using Lease = std::shared_ptr<Slot>;

  /// Without a file, slots are private memory. With `pins`, each slot is pinned when it is mapped
  /// here.
  static std::shared_ptr<SlotLane> make(std::shared_ptr<SharedFile> file = nullptr,
                                        std::shared_ptr<DevicePins> pins = nullptr);
  ~SlotLane();
  SlotLane(const SlotLane&) = delete;
  SlotLane& operator=(const SlotLane&) = delete;

  /// Counts `bytes` (of at least 1) as what a batch needed.
  void note(size_t bytes);

  /// A slot of at least `bytes`, free or newly made; counts them as needed. Never waits. Throws
  /// what Mapping throws.
  Lease acquire(size_t bytes);

  /// A slot of the size that batches lately needed, free or new; null where nothing was noted yet.
  /// A new slot in a SharedFile is a range of addresses only: whoever maps it makes its pages.
  Lease lend();

  /// Takes over a slot that another process made: `bytes` at `offset`, from SharedFile::reserve().
  Lease adopt(uint64_t offset, size_t bytes);

  /// Gives all slots back to the system, those that are held as they come free, until the next
  /// note() or acquire().
  void rest() noexcept;

  struct Stats {
    int64_t slots;       ///< that exist now, those in quarantine included
    int64_t held;        ///< of those, leased
    int64_t fresh;       ///< made since construction because no other was free and large enough
    int64_t slot_bytes;  ///< size of a slot made now
    int64_t bytes;       ///< of all slots
  };
  Stats stats() const;

  /// Where in the SharedFile the slots lie: offsets and sizes.
  std::map<uint64_t, size_t> ranges() const;

 private:
  static constexpr size_t kHistory = 32;
  static constexpr size_t kSlack = 64 << 10;  // sizes closer than this are the same
  // Uses are counted over windows of this many leases; a slot unused for two windows may go.
  static constexpr int kWindow = 64;

  using Owned = std::unique_ptr<Slot>;

  SlotLane(std::shared_ptr<SharedFile> file, std::shared_ptr<DevicePins> pins);
  bool before_fork() noexcept override;
  void watch(const std::shared_ptr<const ChildWatch>& child) noexcept override;

  void check_not_forked() const;
  Lease lease(Owned slot);  // of a slot counted as held; without the lock
  void give_back(Owned slot) noexcept;

  // With the lock held.
  Owned make_slot(size_t bytes);
  Owned add_slot(uint64_t offset, size_t bytes);
  Owned find_free(size_t bytes) noexcept;
  void forget(const Slot& slot) noexcept;
  Owned recycle(Owned slot) noexcept;  // returns a slot that is to go instead
  void end_quarantine(std::vector<Owned>& surplus);
  void count_held() noexcept;
  std::vector<Owned> count_need(size_t bytes);  // returns the free slots that do not fit any more
  bool fits(const Slot& slot) const noexcept;
  size_t fresh_bytes() const { return need_ + headroom_; }

  const std::shared_ptr<SharedFile> file_;
  const std::shared_ptr<DevicePins> pins_;
  const uint64_t generation_;  // fork_generation() at construction

  mutable std::mutex mutex_;  // guards everything below
  // Last returned last. Capacity covers all slots, so that giving one back cannot fail.
  std::vector<Owned> free_;
  std::vector<Owned> quarantine_;     // given back, and seen by a forked child; capacity likewise
  std::map<uint64_t, Slot*> shared_;  // all slots, by offset, where there is a file
  int64_t slots_ = 0;
  int64_t bytes_ = 0;
  std::array<size_t, kHistory> history_{};
  size_t noted_ = 0;     // sizes counted so far
  size_t need_ = 0;      // second largest of history_: one outlier does not count
  size_t headroom_ = 0;  // where sizes vary
  int64_t held_ = 0;
  int64_t peak_ = 0;       // most held at once in this window
  int64_t last_peak_ = 0;  // and in the one before
  int64_t fresh_ = 0;
  int window_ = 0;  // leases in this window
  bool resting_ = false;
};

/// What a lease points to. Members are for the holders of leases.
class SlotLane::Slot {
 public:
  /// Gives the memory back to the system, unless this is a forked child's copy.
  ~Slot();
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  size_t bytes() const { return bytes_; }
  uint64_t offset() const { return offset_; }  ///< in the SharedFile

  /// The memory, page-aligned and bytes() long; its contents are whatever was last written there.
  /// From now on until the slot is given back, forked children see it too. The first call on a slot
  /// in a SharedFile maps it: one holder at a time, and throws std::runtime_error where memory or
  /// addresses run out, or where this process has kMostMapped such mappings.
  std::byte* data();

  /// Copies the first `bytes` out of a slot in a SharedFile, which need not be mapped. Throws
  /// std::runtime_error with the system's reason.
  void read(std::byte* out, size_t bytes) const;

  /// The kernel gives a process 65,530 mappings (vm.max_map_count), which malloc needs too: whoever
  /// holds thousands of batches keeps the rest as copies.
  static constexpr int64_t kMostMapped = 16'384;

 private:
  friend class SlotLane;
  Slot(std::shared_ptr<SharedFile> file, std::shared_ptr<DevicePins> pins, uint64_t offset,
       size_t bytes);
  bool seen() const noexcept;  // by a child that may live

  const uint64_t generation_;  // fork_generation() at construction
  const std::shared_ptr<SharedFile> file_;
  const std::shared_ptr<DevicePins> pins_;
  const uint64_t offset_;
  const size_t bytes_;
  Mapping memory_;
  std::atomic<bool> exposed_{false};  // a hint from holders to watch(): relaxed
  std::vector<std::shared_ptr<const ChildWatch>> children_;  // guarded by the lane's lock
  bool seen_for_ever_ = false;                               // likewise
};

}  // namespace aegis
