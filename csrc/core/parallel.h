// Short-lived threads over the pieces of a large task, for commands that read whole files.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace aegis {

/// Calls `work(i)` once for each i in [0, count), on up to `threads` threads of which this one is
/// the first, in no order. Returns when all calls have returned. After a call has thrown no further
/// ones begin, and the first exception is thrown here. Threads that the system refuses are done
/// without.
template <class F>
void parallel_for(int64_t count, int threads, F&& work) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failed;  // under mutex
  auto run = [&] {
    try {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      if (!failed) failed = std::current_exception();
    }
  };
  std::vector<std::jthread> others;
  try {
    for (int64_t i = 1; i < std::min<int64_t>(threads, count); ++i) others.emplace_back(run);
  } catch (const std::system_error&) {
  }
  run();
  others.clear();  // joins
  if (failed) std::rethrow_exception(failed);
}

}  // namespace aegis
