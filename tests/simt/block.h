// The block that runs: its threads, who of them may go on, and what the others wait for.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <vector>

#include "simt/executor.h"
#include "simt/fiber.h"
#include "simt/thread_set.h"
#include "simt/warp.h"

namespace aegis::simt {

class Block {
 public:
  Block();
  ~Block();

  /// Runs all threads of one block. Throws what a thread threw, or Error where they wait for what
  /// cannot come.
  void run(uint3 index, const dim3& size, const std::function<void()>& thread);
  /// Restarts the random choices.
  void seed(const Schedule& schedule);

  bool running() const { return current_ != nullptr; }
  uint32_t current_thread() const { return current_->number; }
  /// "thread (3,0,0) of block (0,1,0)"
  std::string describe(uint32_t thread) const;
  std::string describe_current() const { return describe(current_->number); }

  // From inside a thread:
  int barrier(bool predicate, const std::source_location& where);
  WarpResult warp_op(const WarpRequest& request, const std::source_location& where);
  /// Lets others go first, where the schedule is random.
  void maybe_yield();

 private:
  enum class State : uint8_t { fresh, ready, at_barrier, at_warp, finished };
  struct Worker;
  struct Thread {
    uint32_t number;  // x + y * size.x + z * size.x * size.y
    uint3 index;
    State state;
    Worker* worker;              // once it has begun
    std::source_location where;  // what it waits at
    bool predicate;              // brought to the barrier
    WarpRequest request;
    WarpResult result;
  };
  struct Unwound {};  // thrown through the threads of a block that is given up

  // Scheduler
  uint32_t pick();
  void step(Thread& thread);
  void release_barrier();
  void give_up();
  std::string stuck() const;
  // Inside threads
  void work(Worker& worker);
  void run_thread(Thread& thread);
  Thread* next_fresh();
  void wait(State state, const std::source_location& where);
  void complete_warp_op(const Thread& thread);
  void enter(Thread& thread);

  std::vector<Thread> threads_;
  uint32_t count_ = 0;
  uint32_t finished_ = 0;
  ThreadSet ready_;
  std::array<uint32_t, kMaxThreads / kWarp> waiting_in_warp_{};
  Thread* current_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  int agreed_ = 0;  // threads whose predicate held at the last barrier
  std::exception_ptr failure_;
  bool given_up_ = false;
  Schedule schedule_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
};

Block& block();

}  // namespace aegis::simt
