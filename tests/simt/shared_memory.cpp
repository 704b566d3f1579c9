#include "simt/shared_memory.h"

#include <algorithm>
#include <cstring>

#include "simt/executor.h"

namespace aegis::simt {
namespace {

constexpr size_t kStaticLimit = 48 * 1024;  // bytes; ptxas refuses more
constexpr size_t kGuard = 64;
constexpr size_t kArena = 1 << 20;
constexpr char kDynamicSite = 0;

}  // namespace

void SharedMemory::begin_launch(size_t dynamic_bytes, size_t limit) {
  end_launch();
  if (!memory_) memory_ = std::make_unique<char[]>(kArena);
  limit_ = limit;
  used_ = requested_ = 0;
  make(&kDynamicSite, "dynamic shared memory", dynamic_bytes, 1, 16);
}

void SharedMemory::end_launch() {
  for (const Variable& variable : variables_) {
    memory_map().remove(&variable.region);
    disarm_guards(variable.region);
  }
  variables_.clear();
}

void SharedMemory::begin_block(unsigned char poison) {
  poison_ = poison;
  for (const Variable& variable : variables_) {
    std::memset(variable.region.begin, poison, variable.region.bytes());
    arm_guards(variable.region);
  }
}

SharedMemory::Variable& SharedMemory::make(const void* site, const char* name, size_t bytes,
                                           size_t element, size_t alignment) {
  requested_ += bytes;
  if (requested_ > limit_) {
    throw Error("shared memory: expected at most " + std::to_string(limit_) +
                " bytes a block, got " + std::to_string(requested_) + " with " + name);
  }
  Variable& variable = variables_.emplace_back(Variable{site, {}});
  Region& region = variable.region;
  // Aligned as asked and no better: an address that is a multiple of twice the alignment would hide
  // a vector access that needs it.
  char* at = memory_.get() + used_ + kGuard;
  at += (alignment - reinterpret_cast<uintptr_t>(at) % (2 * alignment) + 2 * alignment) %
        (2 * alignment);
  region.name = name;
  region.begin = at;
  region.end = at + bytes;
  region.guard = kGuard;
  region.element = element;
  region.shared = true;
  if (detects_races()) region.shadow = std::make_unique<Shadow[]>(bytes);
  used_ = region.end - memory_.get();
  std::memset(region.begin, poison_, bytes);
  arm_guards(region);
  memory_map().add(&region);
  return variable;
}

void* SharedMemory::variable(const void* site, const char* name, size_t bytes, size_t element,
                             size_t alignment) {
  for (Variable& variable : variables_) {
    if (variable.site == site) return variable.region.begin;
  }
  const size_t fixed = requested_ - variables_.front().region.bytes() + bytes;
  if (fixed > kStaticLimit) {
    throw Error(std::string("shared memory: expected at most 49152 bytes of AEGIS_SHARED, got ") +
                std::to_string(fixed) + " with " + name);
  }
  return make(site, name, bytes, element, alignment).region.begin;
}

void* SharedMemory::dynamic(const char* name, size_t element) {
  Region& region = variables_.front().region;
  region.name = name;
  region.element = element;
  return region.begin;
}

std::string SharedMemory::damage() const {
  for (const Variable& variable : variables_) {
    const std::string text = simt::damage(variable.region);
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace aegis::simt
