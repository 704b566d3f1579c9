#include "core/feeder.h"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/fork.h"
#include "core/signals_blocked.h"

namespace aegis {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread looks again before it sleeps. It yields in between: the kernel likes to place a
// woken thread on its waker's CPU, where a spinning waker would keep it from running.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kNap = std::chrono::milliseconds(50);  // the longest sleep between two looks
constexpr auto kLongest = std::chrono::hours(1000);   // later deadlines might overflow the clock

int64_t ns_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

}  // namespace

Feeder::Feeder(std::shared_ptr<const BatchFiller> filler, std::shared_ptr<SlotPool> pool,
               FeederOptions options)
    : filler_(std::move(filler)),
      pool_(std::move(pool)),
      options_(options),
      generation_(fork_generation()),
      shared_(std::make_unique<Shared>(static_cast<size_t>(std::max(1, options.depth)))) {
  check<std::invalid_argument>(filler_ != nullptr, "filler: expected a filler, got null");
  check<std::invalid_argument>(pool_ != nullptr, "pool: expected a pool, got null");
  check<std::invalid_argument>(options_.threads >= 0, "threads: expected at least 0, got ",
                               options_.threads);
  check<std::invalid_argument>(options_.depth >= 1, "depth: expected at least 1, got ",
                               options_.depth);
  (void)lay_out(filler_->fields(), 0);  // throws where there are too many fields
  const SignalsBlocked inherited;
  try {
    for (int i = 0; i < options_.threads; ++i) {
      std::thread& thread = shared_->threads.emplace_back([this] { run(); });
      // From here, so that they have their names as soon as they can be seen.
      pthread_setname_np(thread.native_handle(),
                         ("aegis-feed-" + std::to_string(i)).substr(0, 15).c_str());
    }
  } catch (...) {
    stop();
    throw;
  }
}

Feeder::~Feeder() {
  stop();
  if (forked()) (void)shared_.release();
}

bool Feeder::forked() const { return generation_ != fork_generation(); }

void Feeder::check_not_forked() const {
  check<std::runtime_error>(
      !forked(),
      "this iterator was made before fork() and its threads are not in this process: make a "
      "new one from the loader");
}

void Feeder::check_alive() const {
  check_not_forked();
  check<std::runtime_error>(!stopping_.load(std::memory_order_relaxed),
                            "this iterator has been closed");
}

// --- consumer -----------------------------------------------------------------------------------

Feeder::Job& Feeder::next_free_job(int64_t count) {
  check<std::length_error>(!full(), "submit: expected fewer than ", options_.depth,
                           " outstanding batches, got ", outstanding());
  Job& next = job(submitted_);
  if (static_cast<size_t>(count) > next.indices.capacity()) {
    next.indices.reserve(static_cast<size_t>(count));
    ++allocations_;
  }
  next.indices.clear();
  next.own_memory = false;
  next.filled.store(false, std::memory_order_relaxed);
  return next;
}

void Feeder::publish() {
  published_.store(++submitted_, std::memory_order_seq_cst);
  wake_fillers_if_due();
}

void Feeder::wake_fillers_if_due() {
  // Waking a thread costs a system call, so it is put off until half of the ring wants filling or
  // no batch is left that is filled or being filled.
  const int64_t waiting = submitted_ - next_fill_.load(std::memory_order_relaxed);
  if (waiting > 0 && (2 * waiting > options_.depth || waiting == outstanding())) wake_fillers();
}

void Feeder::submit(const int64_t* indices, int64_t count, const FieldPointers* memory) {
  check_alive();
  check<std::logic_error>(!schedule_, "submit: expected a feeder that follows no schedule");
  check<std::invalid_argument>(count >= 0, "count: expected at least 0, got ", count);
  Job& next = next_free_job(count);
  next.indices.assign(indices, indices + count);
  next.own_memory = memory != nullptr;
  if (memory != nullptr) {
    const std::lock_guard lock(ring_mutex_);  // stop() may be emptying the ring
    next.batch.fields = *memory;
  }
  publish();
}

void Feeder::follow(const Schedule& schedule) {
  check_alive();
  check<std::logic_error>(!schedule_ && submitted_ == 0, "follow: expected an unused feeder");
  check<std::invalid_argument>(schedule.end() <= filler_->samples(), "schedule: expected at most ",
                               filler_->samples(), " samples, got ", schedule.end());
  check<std::invalid_argument>(schedule.options().fill != Fill::pad || filler_->pads(),
                               "schedule: expected no padding: this data set has no such rows");
  schedule_.emplace(schedule);
  next_step_ = 0;
  while (!full() && next_step_ < schedule_->steps()) submit_step();
}

void Feeder::submit_step() {
  const Schedule::Run run = schedule_->run(next_step_);
  Job& next = next_free_job(run.count);
  ++next_step_;  // not before: the step is not lost where no memory was left for it
  // Positions travel; the filler turns them into samples, so that the consumer's turn stays short.
  for (int64_t i = 0; i < run.count; ++i) next.indices.push_back(run.begin + i);
  publish();
}

bool Feeder::ready() const {
  return outstanding() == 0 || options_.threads == 0 || forked() ||
         job(taken_).filled.load(std::memory_order_acquire) ||
         stopping_.load(std::memory_order_relaxed);
}

bool Feeder::wait_ready(std::chrono::nanoseconds limit) {
  check_alive();
  if (ready()) return true;
  const Clock::time_point start = Clock::now();
  if (std::exchange(waited_for_, taken_) != taken_) ++waits_;
  int64_t not_begun = taken_;
  if (filler_->quick() &&
      next_fill_.compare_exchange_strong(not_begun, taken_ + 1, std::memory_order_relaxed)) {
    wake_fillers_if_due();  // for the batches behind it
    fill_here(job(taken_));
  } else {
    wake_fillers();
  }
  while (!ready() && Clock::now() - start < std::min<std::chrono::nanoseconds>(limit, kSpin))
    std::this_thread::yield();
  if (!ready() && limit > kSpin) {
    const auto deadline = start + std::min<std::chrono::nanoseconds>(limit, kLongest);
    std::unique_lock lock(shared_->mutex);
    consumer_sleeps_.store(true, std::memory_order_seq_cst);
    shared_->done.wait_until(lock, deadline, [&] {
      return job(taken_).filled.load(std::memory_order_seq_cst) ||
             stopping_.load(std::memory_order_relaxed);
    });
    consumer_sleeps_.store(false, std::memory_order_relaxed);
  }
  wait_ns_ += ns_since(start);
  return ready();
}

Batch Feeder::take() {
  check_alive();
  check<std::out_of_range>(outstanding() > 0, "take: expected an outstanding batch, got none");
  Job& oldest = job(taken_);
  if (options_.threads == 0) {
    const Clock::time_point start = Clock::now();
    next_fill_.store(taken_ + 1, std::memory_order_relaxed);
    fill_here(oldest);
    wait_ns_ += ns_since(start);
  }
  while (!wait_ready(kNap)) {
  }
  std::exception_ptr error;
  Batch batch = take_out(oldest, error);
  ++taken_;
  if (taken_ == options_.depth) {
    warm_fresh_ = pool_->stats().fresh;
    allocations_ = 0;
  }
  if (schedule_ && next_step_ < schedule_->steps()) {
    submit_step();
  } else {
    wake_fillers_if_due();
  }
  if (error) std::rethrow_exception(error);
  samples_ += batch.count;
  return batch;
}

void Feeder::fill_here(Job& job) {
  const std::lock_guard lock(ring_mutex_);
  if (!stopping_.load(std::memory_order_relaxed)) fill(job);
}

Batch Feeder::take_out(Job& oldest, std::exception_ptr& error) {
  const std::lock_guard lock(ring_mutex_);
  check_alive();  // stop() ends the wait, too
  error = std::exchange(oldest.error, nullptr);
  return std::exchange(oldest.batch, Batch{});
}

Feeder::Stats Feeder::stats() const {
  check_not_forked();
  Stats stats{taken_, samples_, 0, waits_, wait_ns_, fill_ns_.load(std::memory_order_relaxed), 0};
  if (taken_ >= options_.depth) {
    stats.native_allocations = allocations_ + pool_->stats().fresh - warm_fresh_;
  }
  for (int64_t number = taken_; number < submitted_; ++number) {
    stats.ready += job(number).filled.load(std::memory_order_relaxed);
  }
  return stats;
}

// --- fillers ------------------------------------------------------------------------------------

void Feeder::fill(Job& job) noexcept {
  const Clock::time_point start = Clock::now();
  try {
    const int64_t count = static_cast<int64_t>(job.indices.size()), samples = filler_->samples();
    for (int64_t& index : job.indices) {
      if (schedule_) {
        index = schedule_->sample(index);
        continue;
      }
      if (index == kPadding && filler_->pads()) continue;
      const int64_t asked = index;
      if (index < 0) index += samples;
      check<std::out_of_range>(0 <= index && index < samples, "index: expected ", -samples, " to ",
                               samples - 1, ", got ", asked);
    }
    job.batch.count = count;
    if (!job.own_memory) {
      job.batch.lease = pool_->acquire(lay_out(filler_->fields(), count));
      lay_out(filler_->fields(), count, job.batch.lease.data(), &job.batch.fields);
    }
    filler_->fill(job.indices.data(), count, job.batch.fields);
  } catch (...) {
    job.error = std::current_exception();
    job.batch.lease.reset();
  }
  fill_ns_.fetch_add(ns_since(start), std::memory_order_relaxed);
  job.filled.store(true, std::memory_order_seq_cst);
}

void Feeder::wake_fillers() {
  if (sleeping_fillers_.load(std::memory_order_seq_cst) == 0) return;
  const std::lock_guard lock(shared_->mutex);
  shared_->work.notify_one();
}

void Feeder::run() noexcept {
  Clock::time_point idle_since = Clock::now();
  while (!stopping_.load(std::memory_order_relaxed)) {
    int64_t mine = next_fill_.load(std::memory_order_relaxed);
    if (mine < published_.load(std::memory_order_acquire)) {
      if (!next_fill_.compare_exchange_weak(mine, mine + 1, std::memory_order_relaxed)) continue;
      if (mine + 1 < published_.load(std::memory_order_relaxed))
        wake_fillers();  // a colleague takes the next
      fill(job(mine));
      if (consumer_sleeps_.load(std::memory_order_seq_cst)) {
        const std::lock_guard lock(shared_->mutex);
        shared_->done.notify_one();
      }
      idle_since = Clock::now();
      continue;
    }
    if (Clock::now() - idle_since < kSpin) {
      std::this_thread::yield();
      continue;
    }
    std::unique_lock lock(shared_->mutex);
    sleeping_fillers_.fetch_add(1, std::memory_order_seq_cst);
    shared_->work.wait(lock, [&] {
      return next_fill_.load(std::memory_order_relaxed) <
                 published_.load(std::memory_order_seq_cst) ||
             stopping_.load(std::memory_order_relaxed);
    });
    sleeping_fillers_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Feeder::stop() noexcept {
  if (forked()) return;
  const std::lock_guard one_at_a_time(stop_mutex_);
  {
    const std::lock_guard lock(shared_->mutex);
    stopping_.store(true, std::memory_order_relaxed);
    shared_->work.notify_all();
    shared_->done.notify_all();
  }
  for (std::thread& thread : shared_->threads) thread.join();
  shared_->threads.clear();
  const std::lock_guard lock(ring_mutex_);
  for (Job& job : shared_->ring) {
    job.batch = Batch{};
    job.error = nullptr;
    job.filled.store(false, std::memory_order_relaxed);
  }
}

}  // namespace aegis
