// Stands in for a CUDA driver: knows what is registered, and whether its caller kept the rules.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace {
std::mutex mutex;
std::map<uintptr_t, size_t> registered;
int contexts = 0, broken = 0, refusing = 0, total = 0;

bool mapped(uintptr_t data, size_t bytes) {
  unsigned char pages[1 << 16];
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return data % page == 0 && bytes % page == 0 && bytes / page < sizeof pages &&
         mincore(reinterpret_cast<void*>(data), bytes, pages) == 0;
}
}  // namespace

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int ordinal) { return ordinal == 0 ? (*device = 7, 0) : 101; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &contexts;
  return device == 7 ? 0 : 101;
}
int cuCtxPushCurrent_v2(void* context) {
  const std::lock_guard lock(mutex);
  ++contexts;
  return context == &contexts ? 0 : 201;
}
int cuCtxPopCurrent_v2(void**) {
  const std::lock_guard lock(mutex);
  --contexts;
  return 0;
}
int cuMemHostRegister_v2(void* data, size_t bytes, unsigned flags) {
  const std::lock_guard lock(mutex);
  const auto at = reinterpret_cast<uintptr_t>(data);
  if (refusing) return 2;
  if (contexts < 1 || flags != 1 || !mapped(at, bytes)) ++broken;
  for (const auto& [begin, size] : registered) {
    if (at < begin + size && begin < at + bytes) ++broken;
  }
  registered[at] = bytes;
  ++total;
  return 0;
}
int cuMemHostUnregister(void* data) {
  const std::lock_guard lock(mutex);
  const auto found = registered.find(reinterpret_cast<uintptr_t>(data));
  if (found == registered.end() || contexts < 1 || !mapped(found->first, found->second)) {
    ++broken;
    return 1;
  }
  registered.erase(found);
  return 0;
}

int fake_broken() { return broken + contexts; }
int fake_registered() { return static_cast<int>(registered.size()); }
int fake_total() { return total; }
void fake_refuse(int value) { refusing = value; }
int fake_covers(uintptr_t data) {
  const std::lock_guard lock(mutex);
  auto found = registered.upper_bound(data);
  return found != registered.begin() && (--found, data < found->first + found->second);
}
}
