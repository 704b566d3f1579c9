// Reused memory for batches: a slot comes back when the last holder lets go of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/mapping.h"

namespace aegis {

class SlotPool;

/// Shared ownership of one slot's memory. Copies count; the slot returns to its pool when the last
/// one goes, from whatever thread that happens on. Keeps the pool alive. In a forked child nothing
/// is returned: the pool there is a copy whose lock may be held for ever.
class SlotLease {
 public:
  SlotLease() = default;
  SlotLease(const SlotLease& other) noexcept;
  SlotLease(SlotLease&& other) noexcept : pool_(std::move(other.pool_)), slot_(other.slot_) {
    other.slot_ = nullptr;
  }
  SlotLease& operator=(SlotLease other) noexcept;
  ~SlotLease() { reset(); }

  void reset() noexcept;
  explicit operator bool() const { return slot_ != nullptr; }
  std::byte* data() const;  ///< 64-byte aligned, slot_bytes() long
  /// Keeps the memory mapped without holding the slot: others may be given it and write to it.
  std::shared_ptr<const Mapping> memory() const;

 private:
  friend class SlotPool;
  struct Slot;
  SlotLease(std::shared_ptr<SlotPool> pool, Slot* slot) : pool_(std::move(pool)), slot_(slot) {}

  std::shared_ptr<SlotPool> pool_;
  Slot* slot_ = nullptr;
};

/// Slots of one size, each its own pre-faulted mapping. acquire() never waits for a slot: when
/// every one is held, a fresh one is made and counted. Slots beyond what was lately in use at once
/// are given back to the system.
///
/// All members may be called from any thread. In a forked child they throw std::runtime_error, and
/// nothing is unmapped: the lists there may have been copied half changed.
class SlotPool : public std::enable_shared_from_this<SlotPool> {
 public:
  /// `warm` slots are mapped and faulted in at once. Throws what Mapping throws.
  /// With `pins`, each slot is pinned when it is mapped.
  static std::shared_ptr<SlotPool> make(size_t slot_bytes, int warm,
                                        std::shared_ptr<DevicePins> pins = nullptr);
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  /// A slot of at least `bytes` that nobody else holds; its contents are whatever the last batch
  /// left. Asking for more than slot_bytes() makes every slot from then on that large. Throws what
  /// Mapping throws; the pool is then as it was.
  SlotLease acquire(size_t bytes);

  /// The size of a slot, before rounding to pages.
  size_t slot_bytes() const;

  struct Stats {
    int64_t slots;  ///< mapped now
    int64_t held;   ///< of those, leased
    int64_t fresh;  ///< made since construction because all others were held or too small
  };
  Stats stats() const;

 private:
  friend class SlotLease;
  using Slot = SlotLease::Slot;
  // Uses are counted over windows of this many acquisitions; a slot unused for a whole one may go.
  static constexpr int kWindow = 64;

  SlotPool(size_t slot_bytes, int warm, std::shared_ptr<DevicePins> pins);
  std::unique_lock<std::mutex> locked() const;
  SlotLease lease(Slot* slot);
  void give_back(Slot* slot) noexcept;
  Slot* add_slot(std::unique_ptr<Slot> slot);
  std::unique_ptr<Slot> remove_slot(Slot* slot) noexcept;

  const int64_t warm_;
  const std::shared_ptr<DevicePins> pins_;
  const uint64_t generation_;  // fork_generation() at construction

  mutable std::mutex mutex_;  // guards everything below
  size_t slot_bytes_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;  // capacity always covers slots_, so that give_back() never allocates
  int64_t held_ = 0;
  int64_t peak_ = 0;       // most held at once in this window
  int64_t last_peak_ = 0;  // and in the one before
  int64_t fresh_ = 0;
  int window_ = 0;  // acquisitions in this window
};

}  // namespace aegis
