// A stack of its own that runs in turns with its caller (Boost.Context), known to AddressSanitizer.
#pragma once

#include <boost/context/fiber.hpp>
#include <functional>

namespace aegis::simt {

/// Runs `body` on its own stack: resume() enters it until it calls suspend() or returns.
/// One thread owns a fiber and all calls on it.
class Fiber {
 public:
  /// `body` must not throw. The stack ends in a guard page.
  explicit Fiber(std::function<void()> body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// From outside. Not to be called once the body has returned.
  void resume();
  /// From inside the body.
  void suspend();

 private:
  boost::context::fiber inside_;   // valid while suspended
  boost::context::fiber outside_;  // valid while running
  const void* stack_bottom_ = nullptr;
  size_t stack_size_ = 0;
  const void* outer_bottom_ = nullptr;  // the caller's stack, for AddressSanitizer
  size_t outer_size_ = 0;
};

}  // namespace aegis::simt
