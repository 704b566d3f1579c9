// A ring of 64-byte entries from one producer to one consumer, in one process or in two.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>

#include "core/mapping.h"

namespace aegis {

/// What a draft tells its verifier about one token. The names are for both sides to agree on; the
/// ring copies the bytes before the last four.
struct SpscEntry {
  uint64_t sequence;        ///< which text
  uint32_t token;           ///< vocabularies of more than 65,536 tokens are common
  uint32_t position;        ///< in the text
  float logit_delta;        ///< of the token's logit, to the largest
  float draft_probability;  ///< q of the token
  uint32_t flags;           ///< the user's
  uint32_t attestation;     ///< first bits of the checksum of the text so far
  uint32_t parent;          ///< of a node in a tree: index of the entry it follows
  uint32_t slot;            ///< of an arena, where the whole distribution lies
  uint32_t reserved[5];
  uint32_t turn;  ///< the ring's own: comes out as 0, whatever was pushed
};
static_assert(sizeof(SpscEntry) == 64 && std::is_trivially_copyable_v<SpscEntry>);
static_assert(offsetof(SpscEntry, token) == 8 && offsetof(SpscEntry, logit_delta) == 16 &&
              offsetof(SpscEntry, flags) == 24 && offsetof(SpscEntry, parent) == 32 &&
              offsetof(SpscEntry, reserved) == 40 && offsetof(SpscEntry, turn) == 60);

/// One thread pushes and one pops; they may be of different processes that map the same memory.
/// Handing a side over to another thread or process takes synchronisation of the caller's own.
/// close(), closed() and size() may come from anybody.
///
/// Indices are 64-bit counts that only grow, masked to a power of two. An entry says by itself that
/// it has come: its `turn`, which the producer stores with release order after the rest, is 1 + its
/// index, and the consumer's acquire load of it makes the entry its own. So a message is one cache
/// line; an index beside it would be a second (FastForward, Giacomoni et al. 2008, has such a
/// ring). Room goes by `head`, which the consumer alone writes, with release order after its
/// copies: the producer remembers what it last saw and looks again only when that does not do (Lee
/// et al., MCRingBuffer, 2010), so that this line moves once for many entries. `tail`, which the
/// producer alone writes, is for whoever counts.
class SpscRing {
 public:
  /// At least `capacity` entries, rounded up to a power of two, in memory that is pre-faulted;
  /// `shared` is a memfd, for attach(). Throws std::invalid_argument for a capacity of 0 or above
  /// 2³⁰, and what Mapping throws.
  static std::shared_ptr<SpscRing> create(uint64_t capacity, bool shared = false);

  /// The ring behind the descriptor of another, which is duplicated. Throws std::runtime_error
  /// where it is not one.
  static std::shared_ptr<SpscRing> attach(int fd);

  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  uint64_t capacity() const { return mask_ + 1; }
  int fd() const { return memory_.fd() >= 0 ? memory_.fd() : attached_.get(); }

  /// Entries that are there; an old number to whoever is neither side.
  uint64_t size() const {
    const uint64_t head = shared_->head.load(std::memory_order_acquire);
    return counted(shared_->tail.load(std::memory_order_acquire) - head);
  }

  /// Producer: copies as many of `entries` as there is room for, from the first on, and returns how
  /// many. Never waits. Whether the ring is closed is not looked at.
  size_t try_push(std::span<const SpscEntry> entries) noexcept {
    if (entries.empty()) return 0;
    const uint64_t tail = shared_->tail.load(std::memory_order_relaxed);
    uint64_t room = counted(producer_.seen + capacity() - tail);
    if (room < entries.size()) {
      producer_.seen = shared_->head.load(std::memory_order_acquire);
      room = counted(producer_.seen + capacity() - tail);
      if (room == 0) return 0;
    }
    const size_t count = std::min<size_t>(room, entries.size());
    for (size_t i = 0; i < count; ++i) put(tail + i, entries[i]);
    shared_->tail.store(tail + count, std::memory_order_release);
    own_next(tail + count);
    return count;
  }

  /// The same for one entry.
  bool try_push(const SpscEntry& entry) noexcept {
    const uint64_t tail = shared_->tail.load(std::memory_order_relaxed);
    if (tail - producer_.seen >= capacity()) {
      producer_.seen = shared_->head.load(std::memory_order_acquire);
      if (tail - producer_.seen >= capacity()) return false;
    }
    put(tail, entry);
    shared_->tail.store(tail + 1, std::memory_order_release);
    own_next(tail + 1);
    return true;
  }

  /// Consumer: moves as many entries as there are into `out`, up to its size, and returns how many.
  size_t try_pop(std::span<SpscEntry> out) noexcept {
    const uint64_t head = shared_->head.load(std::memory_order_relaxed);
    const size_t most = std::min<size_t>(out.size(), capacity());
    size_t count = 0;
    while (count < most && has(head + count)) {
      take(head + count, out[count]);
      ++count;
    }
    if (count > 0) shared_->head.store(head + count, std::memory_order_release);
    return count;
  }

  bool try_pop(SpscEntry& out) noexcept {
    const uint64_t head = shared_->head.load(std::memory_order_relaxed);
    if (!has(head)) return false;
    take(head, out);
    shared_->head.store(head + 1, std::memory_order_release);
    return true;
  }

  /// No more is pushed, whoever says so. What is in the ring can still be popped.
  void close() noexcept { shared_->closed.store(1, std::memory_order_release); }
  bool closed() const noexcept { return shared_->closed.load(std::memory_order_acquire) != 0; }

  enum class Wait {
    ready,    ///< there is room, or an entry
    closed,   ///< closed; to a consumer: and empty
    gone,     ///< the other side's process has ended; to a consumer: and left nothing
    timeout,  ///< the limit has passed, or a signal came
  };

  /// Producer: waits for room for an entry, at most `limit`. Yields for some 50 µs, then sleeps up
  /// to a millisecond at a time. A signal handler ends a sleep and with it the wait.
  Wait wait_room(std::chrono::nanoseconds limit) noexcept;
  /// Consumer: waits for an entry, likewise.
  Wait wait_entry(std::chrono::nanoseconds limit) noexcept;

  /// This process is the producer, or the consumer, from now on: the other side can then tell when
  /// it is gone. Cheap where nothing has changed; waits and Python's calls do it by themselves.
  /// Whoever pushes in place of a process that may have been killed calls it first: it counts what
  /// that left.
  void be_producer() noexcept {
    if (register_as(shared_->producer, producer_)) count_what_came();
  }
  void be_consumer() noexcept { register_as(shared_->consumer, consumer_); }

 private:
  /// A process: its id, and when it started, since ids come again. 0 is nobody.
  struct Process {
    std::atomic<uint64_t> id;
    std::atomic<uint64_t> started;
  };

  static constexpr uint64_t kMagic = 0x32676e6972736761;  // "agsring2", lowest byte first
  struct Shared {
    uint64_t magic, capacity;                // constant from creation on
    alignas(64) std::atomic<uint64_t> tail;  // entries ever pushed; producer writes
    alignas(64) std::atomic<uint64_t> head;  // entries ever popped; consumer writes
    alignas(64) std::atomic<uint32_t> closed;
    Process producer, consumer;
  };
  static_assert(sizeof(Shared) == 256 && std::atomic<uint64_t>::is_always_lock_free &&
                std::atomic_ref<uint32_t>::is_always_lock_free);
  static_assert(offsetof(Shared, head) - offsetof(Shared, tail) == 64);

  std::atomic_ref<uint32_t> turn(uint64_t index) const noexcept {
    return std::atomic_ref(entries_[index & mask_].turn);
  }

  /// What a slot held before is `capacity` turns back, so it is never taken for what comes now.
  bool has(uint64_t index) const noexcept {
    return turn(index).load(std::memory_order_acquire) == static_cast<uint32_t>(index + 1);
  }

  void put(uint64_t index, const SpscEntry& entry) const noexcept {
    std::memcpy(&entries_[index & mask_], &entry, offsetof(SpscEntry, turn));
    turn(index).store(static_cast<uint32_t>(index + 1), std::memory_order_release);
  }

  void take(uint64_t index, SpscEntry& out) const noexcept {
    std::memcpy(&out, &entries_[index & mask_], offsetof(SpscEntry, turn));
    out.turn = 0;
  }

  /// Producer: takes the line of the next entry, if that is free, away from the consumer, who read
  /// it last, before it is needed: a sixth of a round trip's time. Not where it may be unread.
  void own_next(uint64_t tail) const noexcept {
    if (tail - producer_.seen >= capacity()) return;
#ifdef __x86_64__
    // __builtin_prefetch asks for a copy to read where the instruction is not in the baseline; a
    // processor that does not have it takes it for none.
    asm volatile("prefetchw %0" : : "m"(entries_[tail & mask_]));
#else
    __builtin_prefetch(entries_ + (tail & mask_), 1);
#endif
  }

  /// A difference of indices as a number of entries, 0 to capacity(): whatever the other process
  /// writes, and whichever of the two was read first.
  uint64_t counted(uint64_t difference) const {
    const auto entries = static_cast<int64_t>(difference);
    return entries <= 0 ? 0 : std::min(static_cast<uint64_t>(entries), capacity());
  }

  /// What one side alone touches: in a line of its own, and in each process.
  struct alignas(64) Side {
    uint64_t seen = 0;        // producer: head, as last looked at; never ahead of it
    uint64_t registered = 0;  // 1 + fork_generation() of when this process registered
    uint64_t id = 0;          // as what
  };

  SpscRing(Mapping memory, Descriptor attached, uint64_t capacity);
  static bool register_as(Process& process, Side& side) noexcept;
  void count_what_came() noexcept;
  template <class Ready>
  Wait wait(std::chrono::nanoseconds limit, const Process& other, bool drains,
            Ready ready) noexcept;

  const Mapping memory_;
  const Descriptor attached_;
  Shared* const shared_;
  SpscEntry* const entries_;
  const uint64_t mask_;
  Side producer_, consumer_;
};

}  // namespace aegis
