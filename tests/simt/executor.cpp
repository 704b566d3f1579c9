#include "simt/executor.h"

#include <array>
#include <numeric>
#include <ostream>

#include "simt/block.h"
#include "simt/memory.h"
#include "simt/race_detector.h"
#include "simt/reports.h"
#include "simt/shared_memory.h"
#include "simt/thread_ops.h"

namespace aegis::simt {
namespace {

constexpr std::array<Schedule, 5> kSchedules{{{Order::forward},
                                              {Order::reverse},
                                              {Order::random, 1},
                                              {Order::random, 2},
                                              {Order::random, 3}}};

dim3 current_grid;

SharedMemory& shared_memory() {
  static SharedMemory memory;
  return memory;
}

void check(const dim3& size, const dim3& most, const char* name) {
  const auto text = [](const dim3& d) { return coordinates(d.x, d.y, d.z); };
  if (1 <= size.x && size.x <= most.x && 1 <= size.y && size.y <= most.y && 1 <= size.z &&
      size.z <= most.z) {
    return;
  }
  throw Error(std::string(name) + ": expected (1,1,1) to " + text(most) + ", got " + text(size));
}

void check(const Shape& shape) {
  check(shape.grid, {0x7fffffff, 65535, 65535}, "grid");
  check(shape.block, {1024, 1024, 64}, "block");
  const uint64_t threads = uint64_t{shape.block.x} * shape.block.y * shape.block.z;
  if (threads > kMaxThreads) {
    throw Error("block: expected at most 1024 threads, got " + std::to_string(threads));
  }
}

uint3 where_blocks_stand(uint64_t number, const dim3& grid) {
  const uint64_t row = number / grid.x;
  return {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(row % grid.y),
          static_cast<unsigned>(row / grid.y)};
}

/// Numbers 0 to count - 1 in the schedule's order, without a table of them.
class BlockOrder {
 public:
  BlockOrder(const Schedule& schedule, uint64_t count) : count_(count) {
    if (schedule.order == Order::reverse) {
      at_ = count - 1;
      step_ = count - 1;  // one back, going round
    } else if (schedule.order == Order::random) {
      std::mt19937_64 random(schedule.seed);
      at_ = random() % count;
      do step_ = random() % count + 1;
      while (std::gcd(step_, count) != 1);
    }
  }
  uint64_t next() {
    const uint64_t number = at_;
    at_ = (at_ + step_) % count_;
    return number;
  }

 private:
  uint64_t count_;
  uint64_t at_ = 0;
  uint64_t step_ = 1;
};

unsigned char poison_of(const Schedule& schedule) {
  switch (schedule.order) {
    case Order::forward:
      return 0x7f;  // huge numbers
    case Order::reverse:
      return 0xff;  // -1 and NaN
    default:
      return static_cast<unsigned char>(0x55 + schedule.seed * 37);
  }
}

void run_blocks(const Shape& shape, const Schedule& schedule, const std::function<void()>& thread) {
  const uint64_t count = uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
  BlockOrder order(schedule, count);
  block().seed(schedule);
  for (uint64_t i = 0; i < count; ++i) {
    shared_memory().begin_block(poison_of(schedule));
    detector().begin_block();
    block().run(where_blocks_stand(order.next(), shape.grid), shape.block, thread);
    const std::string damage = shared_memory().damage();
    if (!damage.empty()) reports().add(damage);
  }
}

void report_damage() {
  for (const Region* region : memory_map().regions()) {
    const std::string text = damage(*region);
    if (text.empty() || region->shared) continue;
    reports().add(text);
    arm_guards(*region);
  }
}

}  // namespace

const dim3& grid_size = current_grid;

std::string name_of(const Schedule& schedule) {
  switch (schedule.order) {
    case Order::forward:
      return "forward";
    case Order::reverse:
      return "reverse";
    default:
      return "random_" + std::to_string(schedule.seed);
  }
}

std::ostream& operator<<(std::ostream& out, const Schedule& schedule) {
  return out << name_of(schedule);
}

std::span<const Schedule> schedules() { return kSchedules; }

Settings& settings() {
  static Settings the_settings;
  return the_settings;
}

void run_grid(const Shape& shape, const std::function<void()>& thread) {
  check(shape);
  reports().take();
  current_grid = shape.grid;
  shared_memory().begin_launch(shape.dynamic_shared, settings().shared_limit);
  detector().begin_launch();
  std::exception_ptr failure;
  try {
    run_blocks(shape, settings().schedule, thread);
  } catch (const Error& error) {
    reports().add(error.what());
  } catch (...) {
    failure = std::current_exception();
  }
  report_damage();
  shared_memory().end_launch();
  const std::string found = reports().take();
  if (failure) std::rethrow_exception(failure);
  if (!found.empty()) throw Error(found);
}

// Called from inside threads.

int barrier(bool predicate, const Where& where) { return block().barrier(predicate, where); }

WarpResult warp_op(const WarpRequest& request, const Where& where) {
  return block().warp_op(request, where);
}

void atomic_access(const void* address, size_t bytes) {
  block().maybe_yield();
  if (detects_races()) {
    detector().on_access(address, bytes, true, AccessKind::atomic, __builtin_return_address(0));
  }
}

void fence() { detector().on_fence(); }

void* shared_variable(const void* site, const char* name, size_t bytes, size_t element,
                      size_t alignment) {
  return shared_memory().variable(site, name, bytes, element, alignment);
}

void* dynamic_shared(const char* name, size_t element) {
  return shared_memory().dynamic(name, element);
}

void trap(const Where& where) {
  throw Error("trap: " + block().describe_current() + " at " + place(where));
}

}  // namespace aegis::simt
