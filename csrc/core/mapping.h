// Memory taken from the kernel in whole pages, and given back by a destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/descriptor.h"

namespace aegis {

class DevicePins;

/// Bytes in an ordinary page of this machine.
size_t page_size();

/// `bytes` rounded up to a multiple of `unit`. Throws std::invalid_argument where that overflows.
size_t round_up(size_t bytes, size_t unit);

/// What the kernel granted when huge pages were asked for.
enum class HugePages {
  none,      ///< ordinary pages: not asked for, or this kernel has no other kind
  advised,   ///< madvise(MADV_HUGEPAGE): the kernel uses huge pages where it finds them
  reserved,  ///< MAP_HUGETLB: every page is a huge page from the reserved pool
};

struct MappingOptions {
  bool huge_pages = false;  ///< try the reserved pool, else advise
  bool shared = false;      ///< back the memory by a memfd that other processes can map
  bool prefault = true;     ///< write every page now, so that no page fault comes later
};

/// A range of zeroed memory, readable and writable, aligned to a page. Movable; owns the range.
class Mapping {
 public:
  Mapping() = default;

  /// Maps `bytes`, rounded up to whole pages. Throws std::invalid_argument for 0 bytes and
  /// std::runtime_error (with the size and the system's reason) where the kernel refuses.
  /// Cost with `prefault`: every page is written once, about 0.1-0.3 s per GB.
  explicit Mapping(size_t bytes, MappingOptions options = {});

  /// Maps `bytes` of a memfd from `offset` on, shared with whoever else maps them, every page
  /// present. Does not keep `fd`. Both are multiples of page_size(). Throws as above. Cost: 0.05 s
  /// per GB where the pages exist already.
  static Mapping of_file(int fd, uint64_t offset, size_t bytes);

  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  /// Pins this memory for copies to a device, if the device's driver will, until it is unmapped. Of
  /// private memory, forked children have no copy from then on: the parent's writes after a fork
  /// would go to new pages, and the device read the old.
  void pin(std::shared_ptr<DevicePins> pins);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  HugePages huge_pages() const { return huge_pages_; }

  /// The memfd behind a shared mapping, still owned by it; -1 otherwise.
  int fd() const { return fd_.get(); }

 private:
  bool map_reserved(size_t bytes, bool shared);
  void map_ordinary(size_t bytes, const MappingOptions& options);
  void release() noexcept;

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Descriptor fd_;
  HugePages huge_pages_ = HugePages::none;
  bool shared_ = false;
  std::shared_ptr<DevicePins> pins_;  // where it is pinned
};

/// Addresses set aside, to be filled piece by piece: nothing in it may be touched until then.
class AddressRange {
 public:
  AddressRange() = default;

  /// Throws std::runtime_error where the address space has no room.
  explicit AddressRange(size_t bytes);

  ~AddressRange();
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  /// Puts file bytes [file_offset, file_offset + bytes) at `data() + at`, as private memory: a
  /// write there changes a copy of the page and never the file. `at` and `file_offset` are
  /// multiples of page_size(). Returns 0 or the errno of mmap.
  int map_file(size_t at, size_t bytes, int fd, uint64_t file_offset);

  /// Puts zeroed memory at `data() + at`. Returns 0 or the errno of mmap.
  int map_anonymous(size_t at, size_t bytes);

  /// Tells the kernel that reading ahead does not pay. A hint: nothing is said where it is refused.
  void expect_random_access();

  /// Asks the kernel to bring these bytes into memory, without waiting. `at` is a multiple of
  /// page_size(). A hint, as above.
  void read_soon(size_t at, size_t bytes) const;

 private:
  void release() noexcept;

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace aegis
