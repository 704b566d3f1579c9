// The memory a kernel may touch: regions with a name, guards around them, and a shadow for races.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace aegis::simt {

/// One access to a byte, as the race detector remembers it.
struct Access {
  uint32_t epoch = 0;  ///< barrier intervals since the program began; 0: no access
  uint32_t clock = 0;  ///< of the thread, advanced by its warp syncs
  uint16_t thread = 0;
  bool atomic = false;
};

/// What is remembered of one byte.
struct Shadow {
  Access write;
  Access reads[2];  ///< by two threads, of different warps where there were such
};

/// A buffer or shared variable. `guard` bytes on either side belong to it and must not be touched.
struct Region {
  std::string name;
  char* begin = nullptr;
  char* end = nullptr;
  size_t guard = 0;
  size_t element = 1;  ///< bytes
  bool shared = false;
  bool initialised = false;          ///< written before the launch
  std::unique_ptr<Shadow[]> shadow;  ///< a cell a byte, where races are looked for

  size_t bytes() const { return end - begin; }
  /// "sums[3]", the element at `address`; also outside of the region.
  std::string element_at(const char* address) const;
};

/// Makes the guards of `region` unreadable to AddressSanitizer, or fills them with a pattern.
void arm_guards(const Region& region);
/// Makes the memory ordinary again.
void disarm_guards(const Region& region);
/// "writes 4 bytes before ..." where a guard's pattern is gone, else empty. Needs arm_guards
/// before.
std::string damage(const Region& region);

/// A range of addresses.
struct Span {
  const char* low = nullptr;
  const char* high = nullptr;

  bool holds(const void* address) const { return low <= address && address < high; }
};

/// From the first to the last region, guards included. Most accesses of a kernel are to its own
/// variables, elsewhere: the hooks look here before they do anything else.
inline Span watched;

/// Every region that exists, for the look-up by address.
class MemoryMap {
 public:
  void add(Region* region);
  void remove(const Region* region);
  /// The region that holds `address`, guards included, or null.
  Region* find(const char* address) const;
  const std::vector<Region*>& regions() const { return regions_; }

 private:
  void measure();

  std::vector<Region*> regions_;
};

MemoryMap& memory_map();

/// Device memory for tests: guarded, named, and 256-byte aligned as cudaMalloc's, or `shift` bytes
/// past that, as a view into a tensor may be.
class DeviceMemory {
 public:
  DeviceMemory(std::string name, size_t bytes, size_t element, size_t shift);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  Region& region() { return region_; }
  const Region& region() const { return region_; }

 private:
  Region region_;
  std::unique_ptr<char, void (*)(void*)> memory_;
};

}  // namespace aegis::simt
