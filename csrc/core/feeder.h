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
/// Who may call what: submit(), follow(), ready(), wait_ready(), take() and stats() belong to one
/// consumer thread at a time. stop() may come from any thread. The filler threads are the feeder's
/// own.
///
/// An exception in a filler travels with its batch and is thrown by take(); later batches are not
/// affected. In a forked child every call but the destructor throws std::runtime_error, and the
/// destructor leaves the threads' state alone, since the threads do not exist there.
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
  void submit(const int64_t* indices, int64_t count, const FieldPointers* memory = nullptr);

  /// The batches of `schedule` are asked for as room appears: take() keeps `depth` of them
  /// outstanding. Once, and instead of submit(): throws std::logic_error otherwise.
  void follow(const Schedule& schedule);

  /// Batches asked for and not taken.
  int64_t outstanding() const { return submitted_ - taken_; }
  int64_t taken() const { return taken_; }
  bool full() const { return outstanding() == static_cast<int64_t>(ring_.size()); }

  /// Whether take() would return at once. True also where take() would throw.
  bool ready() const;

  /// Waits until ready() or until `limit` has passed, and returns ready(). A batch that
  /// no thread has begun is filled here when the filler is quick(). Otherwise spins for at most
  /// 50 µs, then sleeps.
  bool wait_ready(std::chrono::nanoseconds limit);

  /// The oldest outstanding batch, or the exception its filling ended in. Waits for it. Throws
  /// std::out_of_range where nothing is outstanding and std::runtime_error after stop().
  Batch take();

  /// Ends the threads and joins them. Batches not taken are dropped. Idempotent.
  void stop() noexcept;

  const BatchFiller& filler() const { return *filler_; }
  const FeederOptions& options() const { return options_; }

  struct Stats {
    int64_t batches;             ///< taken
    int64_t samples;             ///< in them
    int64_t ready;               ///< filled and not taken
    int64_t waits;               ///< times the consumer found its batch not ready
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
    std::exception_ptr error;
    std::atomic<bool> filled{false};  // release by the filler, acquire by the consumer
  };

  Job& job(int64_t number) { return ring_[static_cast<size_t>(number) % ring_.size()]; }
  const Job& job(int64_t number) const { return ring_[static_cast<size_t>(number) % ring_.size()]; }
  void check_alive() const;
  Job& next_free_job(int64_t count);
  void publish();
  void submit_step();
  void fill(Job& job) noexcept;
  void run(int thread_index) noexcept;
  void wake_fillers();

  const std::shared_ptr<const BatchFiller> filler_;
  const std::shared_ptr<SlotPool> pool_;
  const FeederOptions options_;
  const uint64_t generation_;  // fork_generation() at construction

  std::vector<Job> ring_;

  // Owned by the consumer.
  std::optional<Schedule> schedule_;
  int64_t next_step_ = 0;
  int64_t taken_ = 0;
  int64_t samples_ = 0;
  int64_t waits_ = 0;
  int64_t wait_ns_ = 0;
  int64_t allocations_ = 0;
  int64_t warm_fresh_ = 0;  // the pool's fresh slots when warm-up ended
  int64_t submitted_ = 0;

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

  /// The threads and what they sleep on. Left alone, as a whole, in a forked child: a std::thread
  /// there names a thread that is not, and destroying a condition variable waits for sleepers that
  /// will never leave it.
  struct Threads {
    // For sleeping only: guards no data but orders the flags below against the waits.
    std::mutex mutex;
    std::condition_variable work;
    std::condition_variable done;
    std::vector<std::thread> all;
  };
  std::unique_ptr<Threads> threads_;
  std::atomic<int> sleeping_fillers_{0};
  std::atomic<bool> consumer_sleeps_{false};
  std::atomic<bool> stopping_{false};

  std::mutex stop_mutex_;  // one stop() at a time
};

}  // namespace aegis
