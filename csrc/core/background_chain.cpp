#include "core/background_chain.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/fork.h"
#include "core/signals_blocked.h"

namespace aegis {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpin = std::chrono::microseconds(50);  // before a sleep, as in core/feeder.cpp
constexpr auto kNap = std::chrono::milliseconds(50);   // the longest sleep between two looks
constexpr auto kLongest = std::chrono::hours(1000);    // later deadlines might overflow the clock

std::string what(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an unknown exception";
  }
}

}  // namespace

BackgroundChain::BackgroundChain(int bits, bool lanes, Add add)
    : add_(std::move(add)),
      generation_(fork_generation()),
      shared_(std::make_unique<Shared>()),
      chain_(bits, lanes) {
  for (uint32_t i = kRecords; i > 0; --i) spare_.push_back(i - 1);
  const SignalsBlocked inherited;
  shared_->thread = std::thread([this] { run(); });
  pthread_setname_np(shared_->thread.native_handle(), "aegis-chain");
}

BackgroundChain::~BackgroundChain() {
  close();
  if (forked()) (void)shared_.release();
}

bool BackgroundChain::forked() const { return generation_ != fork_generation(); }

void BackgroundChain::check_usable() const {
  check<std::runtime_error>(!forked(),
                            "IntegrityChain: the background thread does not run in this process");
}

void BackgroundChain::throw_ended() const {
  check<std::runtime_error>(
      shared_->error == nullptr,
      "IntegrityChain: the background thread failed: ", shared_->error ? what(shared_->error) : "");
  throw std::runtime_error("IntegrityChain: expected to be open, but close() was called");
}

// --- callers ------------------------------------------------------------------------------------

/// Waits until ready(), the thread's end, or `limit`, and returns whether one of the first two
/// came.
template <class Ready>
bool BackgroundChain::wait(std::chrono::nanoseconds limit, Ready ready) {
  if (ready()) return true;
  const Clock::time_point start = Clock::now();
  while (Clock::now() - start < std::min<std::chrono::nanoseconds>(limit, kSpin)) {
    std::this_thread::yield();
    if (ready()) return true;
  }
  std::unique_lock lock(shared_->mutex);
  return shared_->done.wait_until(lock, start + std::min<std::chrono::nanoseconds>(limit, kLongest),
                                  [&] { return ready() || shared_->ended; });
}

bool BackgroundChain::room() {
  SpscEntry entry;
  while (shared_->spare->try_pop(entry)) spare_.push_back(entry.slot);
  return !spare_.empty();
}

bool BackgroundChain::idle() { return room() && spare_.size() == kRecords; }

bool BackgroundChain::wait_room(std::chrono::nanoseconds limit) {
  check_usable();
  const std::lock_guard turn(calls_);
  return wait(limit, [&] { return room(); });
}

bool BackgroundChain::wait_idle(std::chrono::nanoseconds limit) {
  check_usable();
  const std::lock_guard turn(calls_);
  return wait(limit, [&] { return idle(); });
}

void BackgroundChain::add(int64_t step, double loss, const std::vector<Part>& parts) {
  check_usable();
  const std::lock_guard turn(calls_);
  while (!wait(kNap, [&] { return room(); })) {
  }
  if (!room()) throw_ended();
  const uint32_t slot = spare_.back();
  Record& record = shared_->records[slot];
  record.step = step;
  record.loss = loss;
  copy(record, parts);
  SpscEntry entry{};
  entry.slot = slot;
  const std::lock_guard lock(shared_->mutex);  // close() comes before this, or its record is hashed
  if (shared_->ended || shared_->filled->closed()) throw_ended();
  (void)shared_->filled->try_push(entry);  // has room for every record
  spare_.pop_back();
  shared_->work.notify_one();
}

void BackgroundChain::copy(Record& record, const std::vector<Part>& parts) {
  size_t size = 0;
  for (const Part& part : parts) size += part.size();
  if (size > record.capacity) {
    record.capacity = 0;
    record.bytes.reset();  // before the larger one, so that both need not find room
    record.bytes = std::make_unique_for_overwrite<std::byte[]>(size);
    record.capacity = size;
  }
  record.parts.clear();
  std::byte* at = record.bytes.get();
  for (const Part& part : parts) {
    if (!part.empty()) std::memcpy(at, part.data(), part.size());
    record.parts.emplace_back(at, part.size());
    at += part.size();
  }
}

/// Waits until the chain is the caller's.
void BackgroundChain::settle() {
  while (!wait(kNap, [&] { return idle(); })) {
  }
  if (!idle()) throw_ended();
}

IntegrityChain::State BackgroundChain::state() {
  check_usable();
  const std::lock_guard turn(calls_);
  settle();
  return chain_.state();
}

void BackgroundChain::restore(const IntegrityChain::State& state) {
  check_usable();
  const std::lock_guard turn(calls_);
  settle();
  chain_.restore(state);
}

void BackgroundChain::close() noexcept {
  if (forked()) return;
  const std::lock_guard one_at_a_time(close_mutex_);
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->filled->close();
    shared_->work.notify_all();
  }
  if (shared_->thread.joinable()) shared_->thread.join();
}

// --- the thread ---------------------------------------------------------------------------------

/// The next record; false once there is none and none will come.
bool BackgroundChain::next(SpscEntry& entry) {
  SpscRing& filled = *shared_->filled;
  const Clock::time_point idle_since = Clock::now();
  while (Clock::now() - idle_since < kSpin) {
    if (filled.try_pop(entry)) return true;
    std::this_thread::yield();
  }
  std::unique_lock lock(shared_->mutex);
  shared_->work.wait(lock, [&] { return filled.size() > 0 || filled.closed(); });
  return filled.try_pop(entry);
}

void BackgroundChain::run() noexcept {
  SpscEntry entry;
  try {
    while (next(entry)) {
      const Record& record = shared_->records[entry.slot];
      add_(chain_, record.step, record.loss, record.parts);
      (void)shared_->spare->try_push(entry);
      const std::lock_guard lock(shared_->mutex);
      shared_->done.notify_one();
    }
  } catch (...) {
    const std::lock_guard lock(shared_->mutex);  // add() may be reading it, after close()
    shared_->error = std::current_exception();
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->ended = true;
  shared_->done.notify_all();
}

}  // namespace aegis
