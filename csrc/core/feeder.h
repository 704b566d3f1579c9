// The ring of batches: filler threads write ahead of one consumer, who takes batches in the order
// they were asked for.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/batch_filler.h"
#include "core/schedule.h"
#include "core/slot_pool.h"

namespace aegis {

/// A filled batch. `lease` keeps its memory, unless the caller brought memory of its own.
struct Batch {
  SlotLease lease;
  FieldPointers fields{};
  int64_t count = 0;  ///< rows
};

struct FeederOptions {
  int threads = 0;  ///< filler threads; 0 fills in the consumer's thread, when it takes the batch
  int depth = 1;    ///< batches that may be asked for and not yet taken
};

/// Batches of one data set, prepared by threads.
///
/// Who may call what: submit(), follow(), ready(), wait_ready() and take() belong to one consumer
/// thread at a time. stats(), taken() and stop() may come from any thread. The filler threads are
/// the feeder's own.
///
/// An exception in a filler travels with its batch and is thrown by take(); later batches are not
/// affected.
///
/// In a forked child, where the threads do not exist, submit(), follow(), wait_ready(), take() and
/// stats() throw std::runtime_error; stop() and the destructor leave what the threads touched
/// alone.
class Feeder {
 public:
  /// Slots come from `pool`, which may be shared by feeders. Throws std::invalid_argument where an
  /// option is out of range.
  Feeder(std::shared_ptr<const BatchFiller> filler, std::shared_ptr<SlotPool> pool,
         FeederOptions options);
  ~Feeder();
  Feeder(const Feeder&) = delete;
  Feeder& operator=(const Feeder&) = delete;

  /// Asks for a batch of these samples; negative numbers count from the end. `memory`, if not null,
  /// has the start of the caller's memory for each field, which must live until the batch is taken
  /// or the feeder is stopped. Throws std::length_error when `depth` batches are outstanding. A
  /// sample outside the data set is reported by take() as std::out_of_range, in this batch's turn.
  /// Throws std::invalid_argument for a negative count.
  void submit(const int64_t* indices, int64_t count, const FieldPointers* memory = nullptr);

  /// The batches of `schedule` are asked for as room appears: take() keeps `depth` of them
  /// outstanding. Once, and instead of submit(): throws std::logic_error otherwise. Throws
  /// std::invalid_argument where the schedule has more samples than the data set.
  void follow(const Schedule& schedule);

  /// Batches asked for and not taken.
  int64_t outstanding() const { return submitted_ - taken_; }
  int64_t taken() const { return taken_; }
  bool full() const { return outstanding() == options_.depth; }

  /// Whether take() would return at once. True also where take() would throw: with nothing
  /// outstanding, after stop() and in a forked child.
  bool ready() const;

  /// Waits until ready() or until `limit` has passed, and returns ready(). A batch that no thread
  /// has begun is filled here when the filler is quick(). Otherwise spins for at most 50 µs, then
  /// sleeps. Throws std::runtime_error after stop(), but not when stop() comes while it waits.
  bool wait_ready(std::chrono::nanoseconds limit);

  /// The oldest outstanding batch, or the exception its filling ended in. Waits for it. Throws
  /// std::out_of_range where nothing is outstanding and std::runtime_error after stop().
  Batch take();

  /// Ends the threads and joins them, which takes until the batches being filled are done. Batches
  /// not taken are dropped, and their slots return. Idempotent. Not for a filler to call.
  void stop() noexcept;

  const BatchFiller& filler() const { return *filler_; }
  const FeederOptions& options() const { return options_; }

  struct Stats {
    int64_t batches;             ///< taken
    int64_t samples;             ///< in them
    int64_t ready;               ///< filled and not taken
    int64_t waits;               ///< batches that the consumer found not ready
    int64_t wait_ns;             ///< time it spent waiting, inline filling included
    int64_t fill_ns;             ///< time spent filling, summed over threads
    int64_t native_allocations;  ///< since the first `depth` batches: fresh slots, and lists of
                                 ///< samples that grew
  };
  Stats stats() const;

 private:
  struct Job {
    std::vector<int64_t> indices;  // reserved for the largest batch so far
    bool own_memory = false;       // batch.fields is the caller's: no slot is needed
    Batch batch;
    std::exception_ptr error;         // null in a job that is free: who takes a batch takes it too
    std::atomic<bool> filled{false};  // release by the filler, acquire by the consumer
  };

  /// A number that the consumer alone changes and any thread may read; it says nothing about other
  /// memory, so relaxed.
  class Counter {
   public:
    operator int64_t() const { return value_.load(std::memory_order_relaxed); }
    Counter& operator=(int64_t value) {
      value_.store(value, std::memory_order_relaxed);
      return *this;
    }
    Counter& operator+=(int64_t more) { return *this = *this + more; }
    Counter& operator++() { return *this += 1; }

   private:
    std::atomic<int64_t> value_{0};
  };

  // What a forked child must not destroy: a job may have been copied half written, and destroying a
  // condition variable waits for the threads that sleep on it.
  struct Shared {
    explicit Shared(size_t depth) : ring(depth) {}

    std::vector<Job> ring;
    std::mutex mutex;  // for sleeping only: guards no data but orders the flags against the waits
    std::condition_variable work;  // fillers sleep here
    std::condition_variable done;  // and the consumer here
    std::vector<std::thread> threads;
  };

  Job& job(int64_t number) const {
    return shared_->ring[static_cast<size_t>(number) % shared_->ring.size()];
  }
  bool forked() const;
  void check_not_forked() const;
  void check_alive() const;
  Job& next_free_job(int64_t count);
  void publish();
  void wake_fillers_if_due();
  void submit_step();
  void fill(Job& job) noexcept;
  void fill_here(Job& job);
  Batch take_out(Job& oldest, std::exception_ptr& error);
  void run() noexcept;
  void wake_fillers();

  const std::shared_ptr<const BatchFiller> filler_;
  const std::shared_ptr<SlotPool> pool_;
  const FeederOptions options_;
  const uint64_t generation_;  // fork_generation() at construction

  std::unique_ptr<Shared> shared_;

  // Owned by the consumer.
  std::optional<Schedule> schedule_;
  int64_t next_step_ = 0;
  int64_t waited_for_ = -1;  // the batch that waits_ counted last
  Counter submitted_, taken_, samples_, waits_, wait_ns_, allocations_;
  Counter warm_fresh_;  // the pool's fresh slots when warm-up ended

  // Job numbers: [next_fill_, published_) wait for a filler. Both only grow. A filler claims a job
  // by advancing next_fill_; published_ is advanced by the consumer after the job's fields are
  // written.
  //
  // Nobody may sleep through a wake-up. Each side first makes its news visible, then looks whether
  // the other sleeps; the other first says that it will sleep, then looks for news. All four
  // accesses are sequentially consistent, so at least one side sees the other (Dekker's argument),
  // and the mutex orders the look against the sleep itself.
  alignas(64) std::atomic<int64_t> published_{0};
  alignas(64) std::atomic<int64_t> next_fill_{0};
  alignas(64) std::atomic<int64_t> fill_ns_{0};

  std::atomic<int> sleeping_fillers_{0};
  std::atomic<bool> consumer_sleeps_{false};
  std::atomic<bool> stopping_{false};

  std::mutex stop_mutex_;  // one stop() at a time
  // Held by the consumer while it fills a job, takes a batch out of one or gives it memory, and by
  // stop() while it empties the ring, when the threads have ended: stop() writes a job's batch,
  // error and filled flag, so the consumer writes the first two under this mutex only.
  std::mutex ring_mutex_;
};

}  // namespace aegis
