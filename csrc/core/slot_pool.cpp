#include "core/slot_pool.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/fork.h"

namespace aegis {

struct SlotLease::Slot {
  Slot(size_t bytes, const std::shared_ptr<DevicePins>& pins) {
    auto mapped = std::make_shared<Mapping>(bytes);
    mapped->pin(pins);
    memory = std::move(mapped);
  }

  std::shared_ptr<const Mapping> memory;
  // Holders. Release order on the way down and acquire at zero: what a holder read or wrote happens
  // before the next owner's writes.
  std::atomic<int64_t> leases{0};
  size_t index = 0;  // in SlotPool::slots_
};

SlotLease::SlotLease(const SlotLease& other) noexcept : pool_(other.pool_), slot_(other.slot_) {
  if (slot_ != nullptr) slot_->leases.fetch_add(1, std::memory_order_relaxed);
}

SlotLease& SlotLease::operator=(SlotLease other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(slot_, other.slot_);
  return *this;
}

void SlotLease::reset() noexcept {
  if (slot_ == nullptr) return;
  Slot* slot = std::exchange(slot_, nullptr);
  if (slot->leases.fetch_sub(1, std::memory_order_acq_rel) == 1) pool_->give_back(slot);
  pool_.reset();
}

std::byte* SlotLease::data() const { return slot_->memory->data(); }

std::shared_ptr<const Mapping> SlotLease::memory() const { return slot_->memory; }

std::shared_ptr<SlotPool> SlotPool::make(size_t slot_bytes, int warm,
                                         std::shared_ptr<DevicePins> pins) {
  check<std::invalid_argument>(slot_bytes > 0, "slot_bytes: expected at least 1, got 0");
  check<std::invalid_argument>(warm >= 0, "warm: expected at least 0, got ", warm);
  return std::shared_ptr<SlotPool>(new SlotPool(slot_bytes, warm, std::move(pins)),
                                   [](SlotPool* pool) {
                                     if (pool->generation_ == fork_generation()) delete pool;
                                   });
}

SlotPool::SlotPool(size_t slot_bytes, int warm, std::shared_ptr<DevicePins> pins)
    : warm_(warm), pins_(std::move(pins)), generation_(fork_generation()), slot_bytes_(slot_bytes) {
  for (int i = 0; i < warm; ++i)
    free_.push_back(add_slot(std::make_unique<Slot>(slot_bytes, pins_)));
}

SlotPool::~SlotPool() = default;

std::unique_lock<std::mutex> SlotPool::locked() const {
  check<std::runtime_error>(generation_ == fork_generation(),
                            "this slot pool was made before fork() and belongs to the parent");
  return std::unique_lock(mutex_);
}

SlotPool::Slot* SlotPool::add_slot(std::unique_ptr<Slot> slot) {
  free_.reserve(slots_.size() + 1);
  slot->index = slots_.size();
  slots_.push_back(std::move(slot));
  return slots_.back().get();
}

std::unique_ptr<SlotPool::Slot> SlotPool::remove_slot(Slot* slot) noexcept {
  const size_t index = slot->index;
  std::swap(slots_[index], slots_.back());
  slots_[index]->index = index;
  std::unique_ptr<Slot> removed = std::move(slots_.back());
  slots_.pop_back();
  return removed;
}

SlotLease SlotPool::acquire(size_t bytes) {
  std::unique_lock lock = locked();
  if (bytes <= slot_bytes_ && !free_.empty()) {
    Slot* slot = free_.back();
    free_.pop_back();
    return lease(slot);
  }
  // Mapped and faulted in (0.1-0.3 s per GB) with the lock let go, so that leases can return.
  bytes = std::max(bytes, slot_bytes_);
  lock.unlock();
  auto fresh = std::make_unique<Slot>(bytes, pins_);
  lock.lock();
  Slot* slot = add_slot(std::move(fresh));
  ++fresh_;
  if (bytes > slot_bytes_) {
    slot_bytes_ = bytes;
    for (Slot* outgrown : free_) remove_slot(outgrown);
    free_.clear();
  }
  return lease(slot);
}

SlotLease SlotPool::lease(Slot* slot) {
  slot->leases.store(1, std::memory_order_relaxed);
  peak_ = std::max(peak_, ++held_);
  if (++window_ == kWindow) {
    window_ = 0;
    last_peak_ = std::exchange(peak_, held_);
  }
  return SlotLease(shared_from_this(), slot);
}

void SlotPool::give_back(Slot* slot) noexcept {
  if (generation_ != fork_generation()) return;
  std::unique_ptr<Slot> surplus;  // unmapped after the lock is let go
  const std::lock_guard lock(mutex_);
  --held_;
  if (slot->memory->size() < slot_bytes_) {
    surplus = remove_slot(slot);
    return;
  }
  free_.push_back(slot);
  // One slot a call: the cost of a large release is spread, and a slot that is needed again soon
  // stays.
  const int64_t wanted = std::max({warm_, peak_, last_peak_});
  if (static_cast<int64_t>(slots_.size()) <= wanted) return;
  surplus = remove_slot(free_.front());  // the one that was returned longest ago
  free_.erase(free_.begin());
}

size_t SlotPool::slot_bytes() const {
  const std::unique_lock lock = locked();
  return slot_bytes_;
}

SlotPool::Stats SlotPool::stats() const {
  const std::unique_lock lock = locked();
  return {static_cast<int64_t>(slots_.size()), held_, fresh_};
}

}  // namespace aegis
