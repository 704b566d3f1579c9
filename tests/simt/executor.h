// Runs CUDA kernels on the CPU, one thread of one block at a time, and reports what a GPU would
// hide. Test code only; one host thread. docs/notes/simt.md says how it works and what it cannot
// see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "simt/shim/vector_types.h"

namespace aegis::simt {

/// What a launch found wrong: a refused shape, a barrier that not every thread reaches, an access
/// outside a buffer, a race. Names the kernel's threads, variables and lines.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Which runnable thread goes next, and which block. A thread runs until it waits or returns.
///
/// `forward` takes the lowest, so that the first warp is far ahead of the others; `reverse` takes
/// the highest; `random` draws anew at every step and also stops threads before atomics.
enum class Order : uint8_t { forward, reverse, random };

struct Schedule {
  Order order = Order::forward;
  uint64_t seed = 0;  ///< of `random`
};

/// "random_7", for test ids.
std::string name_of(const Schedule& schedule);
std::ostream& operator<<(std::ostream& out, const Schedule& schedule);

/// What every kernel test runs under: forward, reverse and three random ones.
std::span<const Schedule> schedules();

/// What the next launches obey.
struct Settings {
  Schedule schedule;
  /// Most bytes of shared memory, static and dynamic, that a block may have. The default is what
  /// the smallest of the supported architectures (8.6, 8.9, 12.0) allows.
  size_t shared_limit = 99 * 1024;
};
Settings& settings();

/// Whether this program was built to see races and uninitialised reads (aegis_simt_test's `races`).
bool detects_races();

struct Shape {
  dim3 grid;
  dim3 block;
  size_t dynamic_shared = 0;  ///< bytes
};

/// Runs `thread` once for each thread of the grid. Throws Error, at the latest when all blocks have
/// run; exceptions of the kernel's own pass through.
void run_grid(const Shape& shape, const std::function<void()>& thread);

/// kernel<<<shape>>>(arguments...), each thread with its own copy of the arguments.
template <class... Parameters, class... Arguments>
void launch(const Shape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  const std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  run_grid(shape, [&] { std::apply(kernel, values); });
}

}  // namespace aegis::simt
