#include "core/slot_lane.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "core/check.h"
#include "core/fork.h"

namespace aegis {
namespace {

std::atomic<int64_t> mapped_slots{0};  // of this process, in SharedFiles

}  // namespace

SlotLane::Slot::Slot(std::shared_ptr<SharedFile> file, std::shared_ptr<DevicePins> pins,
                     uint64_t offset, size_t bytes)
    : generation_(fork_generation()),
      file_(std::move(file)),
      pins_(std::move(pins)),
      offset_(offset),
      bytes_(bytes) {
  if (file_ != nullptr) return;
  memory_ = Mapping(bytes);
  memory_.pin(pins_);
}

SlotLane::Slot::~Slot() {
  if (file_ == nullptr) return;
  if (memory_.data() != nullptr) mapped_slots.fetch_sub(1, std::memory_order_relaxed);
  memory_ = Mapping();  // unpinned before its pages go
  if (generation_ == fork_generation() && !seen()) file_->discard(offset_, bytes_);
}

bool SlotLane::Slot::seen() const noexcept {
  return seen_for_ever_ || std::any_of(children_.begin(), children_.end(),
                                       [](const auto& child) { return !child->ended(); });
}

std::byte* SlotLane::Slot::data() {
  exposed_.store(true, std::memory_order_relaxed);
  if (memory_.data() != nullptr) return memory_.data();
  check<std::runtime_error>(mapped_slots.load(std::memory_order_relaxed) < kMostMapped,
                            "slots: expected at most ", kMostMapped, " in use at once");
  memory_ = file_->map(offset_, bytes_);
  memory_.pin(pins_);
  mapped_slots.fetch_add(1, std::memory_order_relaxed);
  return memory_.data();
}

void SlotLane::Slot::read(std::byte* out, size_t bytes) const {
  check<std::invalid_argument>(file_ != nullptr && bytes <= bytes_, "bytes: expected at most ",
                               bytes_, " of a slot in a shared file, got ", bytes);
  file_->read(offset_, out, bytes);
}

std::shared_ptr<SlotLane> SlotLane::make(std::shared_ptr<SharedFile> file,
                                         std::shared_ptr<DevicePins> pins) {
  std::shared_ptr<SlotLane> lane(new SlotLane(std::move(file), std::move(pins)));
  if (lane->file_ != nullptr) lane->listen();
  return lane;
}

SlotLane::SlotLane(std::shared_ptr<SharedFile> file, std::shared_ptr<DevicePins> pins)
    : file_(std::move(file)), pins_(std::move(pins)), generation_(fork_generation()) {}

SlotLane::~SlotLane() {
  if (file_ != nullptr) stop_listening();
}

SlotLane::Owned SlotLane::make_slot(size_t bytes) {
  bytes = round_up(bytes, page_size());
  return add_slot(file_ == nullptr ? 0 : file_->reserve(bytes), bytes);
}

SlotLane::Owned SlotLane::add_slot(uint64_t offset, size_t bytes) {
  Owned slot(new Slot(file_, pins_, offset, bytes));
  free_.reserve(static_cast<size_t>(slots_) + 1);
  quarantine_.reserve(static_cast<size_t>(slots_) + 1);
  if (file_ != nullptr) shared_[offset] = slot.get();
  ++slots_;
  ++fresh_;
  bytes_ += static_cast<int64_t>(bytes);
  return slot;
}

void SlotLane::forget(const Slot& slot) noexcept {
  shared_.erase(slot.offset_);
  --slots_;
  bytes_ -= static_cast<int64_t>(slot.bytes_);
}

SlotLane::Owned SlotLane::find_free(size_t bytes) noexcept {
  const auto found = std::find_if(free_.rbegin(), free_.rend(),
                                  [&](const Owned& slot) { return slot->bytes() >= bytes; });
  if (found == free_.rend()) return nullptr;
  Owned slot = std::move(*found);
  free_.erase(std::next(found).base());
  return slot;
}

void SlotLane::count_held() noexcept {
  peak_ = std::max(peak_, ++held_);
  if (++window_ == kWindow) {
    window_ = 0;
    last_peak_ = std::exchange(peak_, held_);
  }
}

bool SlotLane::fits(const Slot& slot) const noexcept {
  if (resting_) return false;
  return need_ == 0 || (slot.bytes() >= need_ && slot.bytes() <= 2 * fresh_bytes() + kSlack);
}

std::vector<SlotLane::Owned> SlotLane::count_need(size_t bytes) {
  std::vector<Owned> surplus;
  surplus.reserve(free_.size());
  free_.reserve(static_cast<size_t>(slots_));
  resting_ = false;
  history_[noted_++ % kHistory] = bytes;
  size_t largest = 0, second = 0;
  for (size_t size : history_) {
    second = std::max(second, std::min(size, largest));
    largest = std::max(size, largest);
  }
  const size_t before = std::exchange(need_, noted_ == 1 ? largest : second);
  headroom_ = noted_ == 1 || largest == second ? 0 : need_ / 8;
  if (need_ == before) return surplus;
  std::erase_if(free_, [&](Owned& slot) {
    if (fits(*slot)) return false;
    forget(*slot);
    surplus.push_back(std::move(slot));
    return true;
  });
  return surplus;
}

void SlotLane::check_not_forked() const {
  check<std::runtime_error>(generation_ == fork_generation(),
                            "this lane was made before fork() and belongs to the parent");
}

// In the members below, slots that go are destroyed after the lock is let go: that takes system
// calls of milliseconds. Leases are made without it, for they return the slot where they fail.

SlotLane::Lease SlotLane::lease(Owned slot) {
  return Lease(slot.release(), [lane = shared_from_this()](Slot* held) {
    if (lane->generation_ == fork_generation()) lane->give_back(Owned(held));
  });
}

void SlotLane::note(size_t bytes) {
  check_not_forked();
  check<std::invalid_argument>(bytes > 0, "bytes: expected at least 1, got 0");
  std::vector<Owned> surplus;
  const std::lock_guard lock(mutex_);
  surplus = count_need(bytes);
}

SlotLane::Lease SlotLane::acquire(size_t bytes) {
  check_not_forked();
  check<std::invalid_argument>(bytes > 0, "bytes: expected at least 1, got 0");
  std::vector<Owned> surplus;
  Owned slot;
  {
    const std::lock_guard lock(mutex_);
    surplus = count_need(bytes);
    end_quarantine(surplus);
    slot = find_free(bytes);
    if (slot == nullptr) slot = make_slot(std::max(bytes, fresh_bytes()));
    count_held();
  }
  return lease(std::move(slot));
}

SlotLane::Lease SlotLane::lend() {
  check_not_forked();
  std::vector<Owned> surplus;
  Owned slot;
  {
    const std::lock_guard lock(mutex_);
    if (need_ == 0) return nullptr;
    end_quarantine(surplus);
    slot = find_free(need_);
    if (slot == nullptr) slot = make_slot(fresh_bytes());
    count_held();
  }
  return lease(std::move(slot));
}

SlotLane::Lease SlotLane::adopt(uint64_t offset, size_t bytes) {
  check_not_forked();
  const bool known = file_ != nullptr && bytes > 0 && bytes % page_size() == 0 &&
                     offset % page_size() == 0 && offset >= SharedFile::first() &&
                     offset < file_->reserved() && bytes <= file_->reserved() - offset;
  check<std::invalid_argument>(known,
                               "slot: expected whole reserved pages of the shared file, got ",
                               bytes, " bytes at ", offset);
  Owned slot;
  {
    const std::lock_guard lock(mutex_);
    slot = add_slot(offset, bytes);
    count_held();
  }
  return lease(std::move(slot));
}

void SlotLane::give_back(Owned slot) noexcept {
  Owned surplus;
  const std::lock_guard lock(mutex_);
  --held_;
  slot->exposed_.store(false, std::memory_order_relaxed);
  if (slot->seen()) {
    quarantine_.push_back(std::move(slot));
  } else {
    surplus = recycle(std::move(slot));
  }
}

SlotLane::Owned SlotLane::recycle(Owned slot) noexcept {
  slot->children_.clear();
  if (!fits(*slot)) {
    forget(*slot);
    return slot;
  }
  free_.push_back(std::move(slot));
  // One slot a call: the cost of a large release is spread, and a slot that is needed again soon
  // stays.
  const int64_t quarantined = static_cast<int64_t>(quarantine_.size());
  if (slots_ - quarantined <= std::max(peak_, last_peak_)) return nullptr;
  Owned oldest = std::move(free_.front());
  free_.erase(free_.begin());
  forget(*oldest);
  return oldest;
}

void SlotLane::end_quarantine(std::vector<Owned>& surplus) {
  surplus.reserve(surplus.size() + quarantine_.size());
  for (size_t i = 0; i < quarantine_.size();) {
    if (quarantine_[i]->seen()) {
      ++i;
      continue;
    }
    std::swap(quarantine_[i], quarantine_.back());
    Owned slot = std::move(quarantine_.back());
    quarantine_.pop_back();
    surplus.push_back(recycle(std::move(slot)));
  }
}

bool SlotLane::before_fork() noexcept {
  if (file_ == nullptr || generation_ != fork_generation()) return false;
  const std::lock_guard lock(mutex_);
  return std::any_of(shared_.begin(), shared_.end(),
                     [](const auto& item) { return item.second->exposed_.load(); });
}

void SlotLane::watch(const std::shared_ptr<const ChildWatch>& child) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, slot] : shared_) {
    if (!slot->exposed_.load()) continue;
    std::erase_if(slot->children_, [](const auto& known) { return known->ended(); });
    try {
      if (child != nullptr) slot->children_.push_back(child);
    } catch (const std::bad_alloc&) {
      slot->seen_for_ever_ = true;
    }
    slot->seen_for_ever_ |= child == nullptr;
  }
}

void SlotLane::rest() noexcept {
  if (generation_ != fork_generation()) return;
  std::vector<Owned> surplus;
  const std::lock_guard lock(mutex_);
  resting_ = true;
  for (const Owned& slot : free_) forget(*slot);
  std::swap(free_, surplus);
}

SlotLane::Stats SlotLane::stats() const {
  check_not_forked();
  const std::lock_guard lock(mutex_);
  return {slots_, held_, fresh_, static_cast<int64_t>(fresh_bytes()), bytes_};
}

std::map<uint64_t, size_t> SlotLane::ranges() const {
  check_not_forked();
  const std::lock_guard lock(mutex_);
  std::map<uint64_t, size_t> found;
  for (const auto& [offset, slot] : shared_) found[offset] = slot->bytes_;
  return found;
}

}  // namespace aegis
