#include "simt/block.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <string_view>

#include "simt/race_detector.h"
#include "simt/reports.h"
#include "simt/thread_ops.h"

namespace aegis::simt {
namespace {

uint3 current_index, current_block;
dim3 current_size;

std::string coordinates(const uint3& at) { return simt::coordinates(at.x, at.y, at.z); }

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && std::string_view(a.file_name()) == b.file_name();
}

}  // namespace

const uint3& thread_index = current_index;
const uint3& block_index = current_block;
const dim3& block_size = current_size;

/// A stack that threads run on, one after another; one that waits keeps it.
struct Block::Worker {
  explicit Worker(Block& block) : fiber([this, &block] { block.work(*this); }) {}
  Thread* thread = nullptr;
  bool stopping = false;
  Fiber fiber;
};

Block::Block() : threads_(kMaxThreads) {}

Block::~Block() {
  for (const auto& worker : workers_) {
    worker->stopping = true;
    worker->fiber.resume();
  }
}

void Block::seed(const Schedule& schedule) {
  schedule_ = schedule;
  random_.seed(schedule.seed);
}

void Block::run(uint3 index, const dim3& size, const std::function<void()>& thread) {
  current_block = index;
  current_size = size;
  body_ = &thread;
  count_ = size.x * size.y * size.z;
  finished_ = 0;
  failure_ = nullptr;
  given_up_ = false;
  ready_.assign_all(count_);
  waiting_in_warp_.fill(0);
  uint32_t number = 0;
  for (unsigned z = 0; z < size.z; ++z) {
    for (unsigned y = 0; y < size.y; ++y) {
      for (unsigned x = 0; x < size.x; ++x, ++number) {
        Thread& t = threads_[number];
        t.number = number;
        t.index = {x, y, z};
        t.state = State::fresh;
        t.worker = nullptr;
      }
    }
  }
  while (finished_ < count_ && !failure_) {
    if (ready_.empty()) {
      release_barrier();
    } else {
      step(threads_[pick()]);
    }
  }
  if (failure_) {
    give_up();
    std::rethrow_exception(failure_);
  }
}

uint32_t Block::pick() {
  switch (schedule_.order) {
    case Order::forward:
      return ready_.first();
    case Order::reverse:
      return ready_.last();
    default:
      return ready_.next(random_() % count_);
  }
}

void Block::enter(Thread& thread) {
  current_ = &thread;
  current_index = thread.index;
}

void Block::step(Thread& thread) {
  if (thread.worker == nullptr) {
    if (idle_.empty()) {
      workers_.push_back(std::make_unique<Worker>(*this));
      idle_.push_back(workers_.back().get());
    }
    thread.worker = idle_.back();
    thread.worker->thread = &thread;
    idle_.pop_back();
  }
  enter(thread);
  thread.worker->fiber.resume();
  current_ = nullptr;
}

void Block::work(Worker& worker) {
  while (!worker.stopping) {
    // Threads that never wait need no stack of their own: the next one begins on this.
    for (Thread* thread = worker.thread; thread != nullptr; thread = next_fresh()) {
      thread->worker = &worker;
      enter(*thread);
      run_thread(*thread);
    }
    idle_.push_back(&worker);
    worker.fiber.suspend();
  }
}

Block::Thread* Block::next_fresh() {
  if (ready_.empty() || failure_) return nullptr;
  Thread& thread = threads_[pick()];
  return thread.state == State::fresh ? &thread : nullptr;
}

void Block::run_thread(Thread& thread) {
  try {
    (*body_)();
  } catch (const Unwound&) {
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
  thread.state = State::finished;
  ++finished_;
  if (given_up_) return;
  ready_.erase(thread.number);
  if (waiting_in_warp_[thread.number / kWarp] == 0) return;
  // Lanes that wait for this one wait no longer.
  const uint32_t first = thread.number / kWarp * kWarp;
  for (uint32_t i = first; i < std::min(first + kWarp, count_); ++i) {
    if (threads_[i].state == State::at_warp) complete_warp_op(threads_[i]);
  }
}

void Block::wait(State state, const std::source_location& where) {
  Thread& thread = *current_;
  thread.where = where;
  thread.state = state;
  if (state != State::ready) ready_.erase(thread.number);
  if (state == State::at_warp) {
    ++waiting_in_warp_[thread.number / kWarp];
    complete_warp_op(thread);
  }
  thread.worker->fiber.suspend();
  if (given_up_) throw Unwound{};
}

int Block::barrier(bool predicate, const std::source_location& where) {
  current_->predicate = predicate;
  wait(State::at_barrier, where);
  return agreed_;
}

WarpResult Block::warp_op(const WarpRequest& request, const std::source_location& where) {
  check(request, current_->number % kWarp);
  Thread& thread = *current_;
  thread.request = request;
  wait(State::at_warp, where);
  return thread.result;
}

void Block::maybe_yield() {
  if (schedule_.order == Order::random && random_() % 2) {
    wait(State::ready, std::source_location::current());
  }
}

void Block::complete_warp_op(const Thread& thread) {
  const uint32_t first = thread.number / kWarp * kWarp;
  uint32_t group = 0;
  WarpRequests requests{};
  for (uint32_t lane = 0; lane < kWarp && first + lane < count_; ++lane) {
    const Thread& other = threads_[first + lane];
    if (!(thread.request.mask >> lane & 1) || other.state == State::finished) continue;
    if (other.state != State::at_warp || other.request.mask != thread.request.mask ||
        other.request.op != thread.request.op) {
      return;
    }
    group |= 1u << lane;
    requests[lane] = &other.request;
  }
  const WarpResults results = resolve(group, requests);
  if (thread.request.op == WarpOp::sync) detector().on_syncwarp(first, group);
  waiting_in_warp_[first / kWarp] -= std::popcount(group);
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    if (!(group >> lane & 1)) continue;
    threads_[first + lane].result = results[lane];
    threads_[first + lane].state = State::ready;
    ready_.insert(first + lane);
  }
}

void Block::release_barrier() {
  const Thread& first = threads_[0];
  agreed_ = 0;
  for (uint32_t i = 0; i < count_; ++i) {
    if (threads_[i].state != State::at_barrier || !same_place(threads_[i].where, first.where)) {
      failure_ = std::make_exception_ptr(Error(stuck()));
      return;
    }
    agreed_ += threads_[i].predicate;
  }
  detector().on_barrier(first.where);
  for (uint32_t i = 0; i < count_; ++i) threads_[i].state = State::ready;
  ready_.assign_all(count_);
}

void Block::give_up() {
  given_up_ = true;
  for (uint32_t i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    if (thread.state == State::fresh || thread.state == State::finished) continue;
    enter(thread);
    thread.worker->fiber.resume();
  }
  current_ = nullptr;
}

std::string Block::describe(uint32_t thread) const {
  return "thread " + coordinates(threads_[thread].index) + " of block " +
         coordinates(current_block);
}

std::string Block::stuck() const {
  // Neighbours in the same state become one line.
  const auto state_of = [](const Thread& thread) -> std::string {
    switch (thread.state) {
      case State::at_barrier:
        return "at the barrier " + place(thread.where);
      case State::at_warp: {
        char mask[16];
        std::snprintf(mask, sizeof mask, "0x%08x", thread.request.mask);
        return std::string("at ") + name_of(thread.request.op) + " with mask " + mask + ", " +
               place(thread.where);
      }
      default:
        return "returned";
    }
  };
  std::string text =
      "barrier: not all threads of block " + coordinates(current_block) + " come to the same one:";
  for (uint32_t begin = 0, end = 0; begin < count_; begin = end) {
    const std::string state = state_of(threads_[begin]);
    while (end < count_ && state_of(threads_[end]) == state) ++end;
    text += "\n  threads " + coordinates(threads_[begin].index) + " to " +
            coordinates(threads_[end - 1].index) + ": " + state;
  }
  return text;
}

Block& block() {
  static Block the_block;
  return the_block;
}

}  // namespace aegis::simt
