#include "core/device_pins.h"

#include <dlfcn.h>

#include "core/check.h"

namespace aegis {

// The driver's functions under the names that its library exports. Results are CUresult, 0 is
// success; contexts and devices are handles.
struct DevicePins::Driver {
  int (*init)(unsigned flags);
  int (*get_device)(int* device, int ordinal);
  int (*retain_context)(void** context, int device);
  int (*push_context)(void* context);
  int (*pop_context)(void** context);
  int (*register_memory)(void* data, size_t bytes, unsigned flags);
  int (*unregister_memory)(void* data);
};

namespace {

constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE: pinned for every context

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  check<std::runtime_error>(function != nullptr, "CUDA driver: expected the function ", name,
                            ", got a library without it");
}

void require(int code, const char* name) {
  check<std::runtime_error>(code == 0, "CUDA driver: ", name, " returned error ", code);
}

}  // namespace

std::shared_ptr<DevicePins> DevicePins::open(int device, const std::string& library) {
  // Never closed: the driver's threads live in it.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  check<std::runtime_error>(handle != nullptr, "CUDA driver: could not open ", library);
  auto driver = std::make_unique<Driver>();
  find(handle, "cuInit", driver->init);
  find(handle, "cuDeviceGet", driver->get_device);
  find(handle, "cuDevicePrimaryCtxRetain", driver->retain_context);
  find(handle, "cuCtxPushCurrent_v2", driver->push_context);
  find(handle, "cuCtxPopCurrent_v2", driver->pop_context);
  find(handle, "cuMemHostRegister_v2", driver->register_memory);
  find(handle, "cuMemHostUnregister", driver->unregister_memory);
  require(driver->init(0), "cuInit");
  int found = 0;
  require(driver->get_device(&found, device), "cuDeviceGet");
  void* context = nullptr;
  require(driver->retain_context(&context, found), "cuDevicePrimaryCtxRetain");
  const Driver* kept = driver.release();  // as long as the context: slots may outlive all else
  return std::shared_ptr<DevicePins>(new DevicePins(kept, context));
}

DevicePins::DevicePins(const Driver* driver, void* context)
    : driver_(driver), context_(context), generation_(fork_generation()) {}

// The thread's own context is pushed aside, not replaced: torch goes by it.
bool DevicePins::enter() const noexcept {
  return of_this_process() && driver_->push_context(context_) == 0;
}

void DevicePins::leave() const noexcept {
  void* context = nullptr;
  driver_->pop_context(&context);
}

bool DevicePins::pin(std::byte* data, size_t bytes) noexcept {
  bool pinned = false;
  if (enter()) {
    pinned = driver_->register_memory(data, bytes, kPortable) == 0;
    leave();
  }
  if (pinned) {
    ranges_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  } else {
    refused_.fetch_add(1, std::memory_order_relaxed);
  }
  return pinned;
}

void DevicePins::unpin(std::byte* data, size_t bytes) noexcept {
  if (!enter()) return;
  driver_->unregister_memory(data);  // at exit the driver may be gone, and all pins with it
  leave();
  ranges_.fetch_sub(1, std::memory_order_relaxed);
  bytes_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

DevicePins::Stats DevicePins::stats() const {
  return {ranges_.load(std::memory_order_relaxed), bytes_.load(std::memory_order_relaxed),
          refused_.load(std::memory_order_relaxed)};
}

}  // namespace aegis
