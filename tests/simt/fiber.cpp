#include "simt/fiber.h"

#include <boost/context/protected_fixedsize_stack.hpp>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace aegis::simt {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStackBytes = 256 * 1024;  // red zones make frames larger

void start_switch(void** fake, const void* bottom, size_t size) {
  __sanitizer_start_switch_fiber(fake, bottom, size);
}
void finish_switch(void* fake, const void** bottom, size_t* size) {
  __sanitizer_finish_switch_fiber(fake, bottom, size);
}
#else
constexpr size_t kStackBytes = 64 * 1024;

void start_switch(void**, const void*, size_t) {}
void finish_switch(void*, const void**, size_t*) {}
#endif

}  // namespace

Fiber::Fiber(std::function<void()> body) {
  boost::context::protected_fixedsize_stack allocator(kStackBytes);
  const boost::context::stack_context stack = allocator.allocate();
  stack_size_ = stack.size;
  stack_bottom_ = static_cast<const char*>(stack.sp) - stack.size;
  inside_ = boost::context::fiber(
      std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack), allocator,
      [this, body = std::move(body)](boost::context::fiber&& caller) {
        finish_switch(nullptr, &outer_bottom_, &outer_size_);
        outside_ = std::move(caller);
        body();
        start_switch(nullptr, outer_bottom_, outer_size_);
        return std::move(outside_);
      });
}

void Fiber::resume() {
  void* fake = nullptr;
  start_switch(&fake, stack_bottom_, stack_size_);
  inside_ = std::move(inside_).resume();
  finish_switch(fake, nullptr, nullptr);
}

void Fiber::suspend() {
  void* fake = nullptr;
  start_switch(&fake, outer_bottom_, outer_size_);
  outside_ = std::move(outside_).resume();
  finish_switch(fake, &outer_bottom_, &outer_size_);
}

}  // namespace aegis::simt
