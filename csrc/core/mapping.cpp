#include "core/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/device_pins.h"

#ifndef MADV_POPULATE_WRITE  // Linux 5.14
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace aegis {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::byte* map(void* at, size_t bytes, int protection, int flags, int fd) {
  void* found = mmap(at, bytes, protection, flags, fd, 0);
  return found == MAP_FAILED ? nullptr : static_cast<std::byte*>(found);
}

/// `bytes` of addresses that begin at a multiple of `alignment`, with nothing behind them.
std::byte* reserve(size_t bytes, size_t alignment) {
  const size_t slack = alignment > page_size() ? alignment : 0;
  std::byte* found =
      map(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (found == nullptr || slack == 0) return found;
  const size_t before = (alignment - reinterpret_cast<uintptr_t>(found) % alignment) % alignment;
  if (before > 0) munmap(found, before);
  if (slack > before) munmap(found + before + bytes, slack - before);
  return found + before;
}

/// Returns 0, or the errno of a kernel that has no memory for the pages.
int touch_every_page(std::byte* data, size_t bytes) {
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;  // EINVAL: a kernel before 5.14
  for (size_t at = 0; at < bytes; at += page_size()) {
    *reinterpret_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
  return 0;
}

/// The same for shared memory, of which existing pages stay as they are: reading is enough to map
/// them for writing too, and takes 16 pages at a time where writing takes one.
int find_every_page(std::byte* data, size_t bytes) {
  if (madvise(data, bytes, MADV_POPULATE_READ) == 0) return 0;
  if (errno != EINVAL) return errno;
  for (size_t at = 0; at < bytes; at += page_size()) {
    (void)*reinterpret_cast<volatile std::byte*>(data + at);
  }
  return 0;
}

}  // namespace

size_t page_size() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

size_t round_up(size_t bytes, size_t unit) {
  check<std::invalid_argument>(bytes <= SIZE_MAX - (unit - 1), "bytes: expected less than 2^64 - ",
                               unit, ", got ", bytes);
  return (bytes + unit - 1) / unit * unit;
}

Mapping::Mapping(size_t bytes, MappingOptions options) {
  check<std::invalid_argument>(bytes > 0, "bytes: expected at least 1, got 0");
  shared_ = options.shared;
  try {
    const bool reserved = options.huge_pages && map_reserved(bytes, options.shared);
    if (!reserved) map_ordinary(bytes, options);
    const int failed = options.prefault ? touch_every_page(data_, size_) : 0;
    check<std::runtime_error>(failed == 0, "could not fill ", size_,
                              " bytes of memory with pages: ", std::strerror(failed));
  } catch (...) {
    release();
    throw;
  }
}

Mapping Mapping::of_file(int fd, uint64_t offset, size_t bytes) {
  check<std::invalid_argument>(bytes > 0, "bytes: expected at least 1, got 0");
  void* found =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  check<std::runtime_error>(found != MAP_FAILED, "could not map ", bytes,
                            " bytes of shared memory: ", std::strerror(errno));
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(found);
  mapping.size_ = bytes;
  mapping.shared_ = true;
  const int failed = find_every_page(mapping.data_, bytes);
  check<std::runtime_error>(failed == 0, "could not fill ", bytes,
                            " bytes of shared memory with pages: ", std::strerror(failed));
  return mapping;
}

bool Mapping::map_reserved(size_t bytes, bool shared) {
  const size_t size = round_up(bytes, kHugePage);
  Descriptor fd;
  if (shared) {
    fd = Descriptor(memfd_create("aegis", MFD_CLOEXEC | MFD_HUGETLB));
    if (!fd || ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return false;
  }
  const int kind = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
  data_ = map(nullptr, size, PROT_READ | PROT_WRITE, kind, fd.get());
  if (data_ == nullptr) return false;
  size_ = size;
  fd_ = std::move(fd);
  huge_pages_ = HugePages::reserved;
  return true;
}

void Mapping::map_ordinary(size_t bytes, const MappingOptions& options) {
  const size_t unit = options.huge_pages ? kHugePage : page_size();
  const size_t size = round_up(bytes, unit);
  auto require = [&](bool ok) {
    check<std::runtime_error>(ok, "could not map ", size, " bytes of memory: ", strerror(errno));
  };
  if (options.shared) {
    fd_ = Descriptor(memfd_create("aegis", MFD_CLOEXEC));
    require(static_cast<bool>(fd_));
    require(ftruncate(fd_.get(), static_cast<off_t>(size)) == 0);
  }
  data_ = reserve(size, unit);
  require(data_ != nullptr);
  size_ = size;
  const int kind = options.shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  require(map(data_, size, PROT_READ | PROT_WRITE, kind | MAP_FIXED, fd_.get()) != nullptr);
  if (options.huge_pages && madvise(data_, size, MADV_HUGEPAGE) == 0) {
    huge_pages_ = HugePages::advised;
  }
}

void Mapping::pin(std::shared_ptr<DevicePins> pins) {
  if (pins == nullptr || pins_ != nullptr || data_ == nullptr) return;
  if (!pins->pin(data_, size_)) return;
  pins_ = std::move(pins);
  if (!shared_) madvise(data_, size_, MADV_DONTFORK);
}

void Mapping::release() noexcept {
  // What is not inherited is not this process's to unmap: something else may be there.
  const bool inherited = shared_ || pins_ == nullptr || pins_->of_this_process();
  if (pins_ != nullptr) pins_->unpin(data_, size_);
  pins_.reset();
  if (data_ != nullptr && inherited) munmap(data_, size_);
  data_ = nullptr;
}

Mapping::~Mapping() { release(); }

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::move(other.fd_)),
      huge_pages_(std::exchange(other.huge_pages_, HugePages::none)),
      shared_(other.shared_),
      pins_(std::move(other.pins_)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  fd_ = std::move(other.fd_);  // swaps
  std::swap(huge_pages_, other.huge_pages_);
  std::swap(shared_, other.shared_);
  std::swap(pins_, other.pins_);
  return *this;
}

AddressRange::AddressRange(size_t bytes) : size_(round_up(bytes, page_size())) {
  data_ = reserve(size_, page_size());
  check<std::runtime_error>(data_ != nullptr, "could not reserve ", size_,
                            " bytes of addresses: ", std::strerror(errno));
}

int AddressRange::map_file(size_t at, size_t bytes, int fd, uint64_t file_offset) {
  // Without MAP_NORESERVE, a writable private mapping larger than memory and swap is refused; where
  // the system accounts for it all the same (vm.overcommit_memory = 2), take it read-only.
  for (int protection : {PROT_READ | PROT_WRITE, PROT_READ}) {
    void* found = mmap(data_ + at, bytes, protection, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd,
                       static_cast<off_t>(file_offset));
    if (found != MAP_FAILED) return 0;
    if (errno != ENOMEM) break;
  }
  return errno;
}

int AddressRange::map_anonymous(size_t at, size_t bytes) {
  void* found = mmap(data_ + at, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return found == MAP_FAILED ? errno : 0;
}

void AddressRange::expect_random_access() { madvise(data_, size_, MADV_RANDOM); }

void AddressRange::read_soon(size_t at, size_t bytes) const {
  madvise(data_ + at, bytes, MADV_WILLNEED);
}

void AddressRange::release() noexcept {
  if (data_ != nullptr) munmap(data_, size_);
}

AddressRange::~AddressRange() { release(); }

AddressRange::AddressRange(AddressRange&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AddressRange& AddressRange::operator=(AddressRange&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace aegis
