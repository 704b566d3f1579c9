// An IntegrityChain that hashes on a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/integrity_chain.h"
#include "core/spsc_ring.h"

namespace aegis {

/// The records of an IntegrityChain, hashed in their order by a thread: add() costs the caller a
/// copy of the bytes, which it may overwrite as soon as add() returns.
///
/// At most kRecords wait; add() waits for room then. Copies lie in memory that is kept and used
/// again, the last used first: as much as ever waited at once, and nothing is allocated once
/// records have been as large as they get.
///
/// Any thread may call; calls take turns. An exception of the thread ends it and is told by every
/// later add(), state() and restore() as a std::runtime_error.
///
/// In a forked child, where the thread does not exist, all but close() and the destructor throw
/// std::runtime_error, and those leave what the thread touched alone.
class BackgroundChain {
 public:
  using Part = IntegrityChain::Part;
  using Add = std::function<void(IntegrityChain&, int64_t, double, const std::vector<Part>&)>;

  static constexpr uint32_t kRecords = 16;

  /// Throws std::invalid_argument unless `bits` is 32 or 64, and std::system_error where no thread
  /// can be had. `add` is what the thread calls; tests have their own.
  BackgroundChain(int bits, bool lanes, Add add = &IntegrityChain::add);
  ~BackgroundChain();
  BackgroundChain(const BackgroundChain&) = delete;
  BackgroundChain& operator=(const BackgroundChain&) = delete;

  /// Whether add() would not wait, for which it waits at most `limit`. True also where add() would
  /// throw.
  bool wait_room(std::chrono::nanoseconds limit);
  /// Copies the record of a step; it is hashed after those added before. Waits for room. Throws
  /// std::runtime_error after close(), and std::bad_alloc: nothing was added then.
  void add(int64_t step, double loss, const std::vector<Part>& parts);

  /// Whether all that was added is hashed, for which it waits at most `limit`. True also where
  /// state() would throw.
  bool wait_idle(std::chrono::nanoseconds limit);
  /// Of all records added; waits until they are hashed.
  IntegrityChain::State state();
  /// Waits, then goes on from there. Throws what IntegrityChain::restore throws.
  void restore(const IntegrityChain::State& state);

  /// Ends the thread once all that was added is hashed, and joins it. Idempotent. An add() that
  /// waits for room throws then; one that runs at the same time adds its record or throws.
  void close() noexcept;

 private:
  // What the caller copies, and then is the thread's until it comes back.
  struct Record {
    int64_t step;
    double loss;
    std::unique_ptr<std::byte[]> bytes;  // of all parts
    size_t capacity = 0;
    std::vector<Part> parts;
  };

  // What a forked child must not destroy: destroying a condition variable waits for its sleepers.
  struct Shared {
    const std::shared_ptr<SpscRing> filled = SpscRing::create(kRecords);  // to the thread
    const std::shared_ptr<SpscRing> spare = SpscRing::create(kRecords);   // and back
    Record records[kRecords];  // entries have their index as `slot`
    std::exception_ptr error;  // written before `ended`
    // Guards both of these, and orders what a side makes visible in a ring against the other's
    // sleep.
    std::mutex mutex;
    std::condition_variable work;  // the thread sleeps here
    std::condition_variable done;  // and a caller here
    bool ended = false;            // the thread does nothing more
    std::thread thread;            // whoever holds close_mutex_ joins it
  };

  bool forked() const;
  void check_usable() const;
  [[noreturn]] void throw_ended() const;
  template <class Ready>
  bool wait(std::chrono::nanoseconds limit, Ready ready);
  bool room();
  bool idle();
  void copy(Record& record, const std::vector<Part>& parts);
  void settle();
  void run() noexcept;
  bool next(SpscEntry& entry);

  const Add add_;
  const uint64_t generation_;  // fork_generation() at construction
  std::unique_ptr<Shared> shared_;

  IntegrityChain chain_;         // the thread's while a record is with it, otherwise the caller's
  std::mutex calls_;             // one call at a time: whoever holds it is the caller
  std::vector<uint32_t> spare_;  // records that the caller has, the last used at the end
  std::mutex close_mutex_;
};

}  // namespace aegis
