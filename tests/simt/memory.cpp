#include "simt/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "simt/executor.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace aegis::simt {
namespace {

constexpr size_t kAlignment = 256;  // of cudaMalloc
constexpr char kGuardByte = 0x5a;
constexpr char kUnwritten = 0x7f;  // huge as a number of any type, NaN in float16 and float8

#ifndef __SANITIZE_ADDRESS__
const char* first_damaged(const char* begin, const char* end) {
  const char* at = std::find_if(begin, end, [](char byte) { return byte != kGuardByte; });
  return at == end ? nullptr : at;
}
#endif

}  // namespace

std::string Region::element_at(const char* address) const {
  const auto offset = address - begin, size = static_cast<std::ptrdiff_t>(element);
  const std::ptrdiff_t index = offset >= 0 ? offset / size : -((size - 1 - offset) / size);
  return name + "[" + std::to_string(index) + "]";
}

#ifdef __SANITIZE_ADDRESS__
// An access to them ends the program with a stack trace, which is better than any message.
void arm_guards(const Region& region) {
  ASAN_POISON_MEMORY_REGION(region.begin - region.guard, region.guard);
  ASAN_POISON_MEMORY_REGION(region.end, region.guard);
  ASAN_UNPOISON_MEMORY_REGION(region.begin, region.bytes());
}
void disarm_guards(const Region& region) {
  ASAN_UNPOISON_MEMORY_REGION(region.begin - region.guard, region.bytes() + 2 * region.guard);
}
std::string damage(const Region&) { return {}; }
#else
void arm_guards(const Region& region) {
  std::memset(region.begin - region.guard, kGuardByte, region.guard);
  std::memset(region.end, kGuardByte, region.guard);
}
void disarm_guards(const Region&) {}
std::string damage(const Region& region) {
  const char* at = first_damaged(region.begin - region.guard, region.begin);
  if (at == nullptr) at = first_damaged(region.end, region.end + region.guard);
  if (at == nullptr) return {};
  return "a write outside of " + region.name + ": " + region.element_at(at) +
         " has changed; it has " + std::to_string(region.bytes() / region.element) + " elements";
}
#endif

void MemoryMap::add(Region* region) {
  regions_.push_back(region);
  measure();
}

void MemoryMap::remove(const Region* region) {
  std::erase(regions_, region);
  measure();
}

void MemoryMap::measure() {
  watched = {};
  for (const Region* region : regions_) {
    const char *low = region->begin - region->guard, *high = region->end + region->guard;
    watched.low = watched.low == nullptr ? low : std::min(watched.low, low);
    watched.high = std::max(watched.high, high);
  }
}

Region* MemoryMap::find(const char* address) const {
  for (Region* region : regions_) {
    if (region->begin - region->guard <= address && address < region->end + region->guard) {
      return region;
    }
  }
  return nullptr;
}

MemoryMap& memory_map() {
  static MemoryMap map;
  return map;
}

DeviceMemory::DeviceMemory(std::string name, size_t bytes, size_t element, size_t shift)
    : memory_(nullptr, std::free) {
  const size_t total = (bytes + shift + 3 * kAlignment - 1) / kAlignment * kAlignment;
  memory_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, total)));
  if (memory_ == nullptr) throw std::bad_alloc();
  region_.name = std::move(name);
  region_.begin = memory_.get() + kAlignment + shift;
  region_.end = region_.begin + bytes;
  region_.guard = kAlignment / 2;
  region_.element = element;
  std::memset(region_.begin, kUnwritten, bytes);
  if (detects_races()) region_.shadow = std::make_unique<Shadow[]>(bytes);
  arm_guards(region_);
  memory_map().add(&region_);
}

DeviceMemory::~DeviceMemory() {
  memory_map().remove(&region_);
  disarm_guards(region_);
}

}  // namespace aegis::simt
