#include "core/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "core/check.h"

namespace aegis {
namespace {

// The largest power of two below what the kernel takes: at 1 GB a batch it is used up after 10^9
// fresh slots. A number only: nothing is allocated for it.
constexpr uint64_t kBytes = uint64_t{1} << 60;

}  // namespace

std::shared_ptr<SharedFile> SharedFile::create() {
  Descriptor fd(memfd_create("aegis", MFD_CLOEXEC));
  check<std::runtime_error>(static_cast<bool>(fd),
                            "could not create shared memory: ", std::strerror(errno));
  check<std::runtime_error>(ftruncate(fd.get(), static_cast<off_t>(kBytes)) == 0,
                            "could not size shared memory: ", std::strerror(errno));
  std::shared_ptr<SharedFile> file(new SharedFile(std::move(fd)));
  new (file->end_) Counter(first());
  return file;
}

std::shared_ptr<SharedFile> SharedFile::attach(int fd) {
  Descriptor owned(fd);
  struct stat found{};
  check<std::runtime_error>(fstat(fd, &found) == 0, "fd ", fd, ": ", std::strerror(errno));
  check<std::runtime_error>(found.st_size == static_cast<off_t>(kBytes), "fd ", fd,
                            ": expected the memory of a SharedFile, got a file of ", found.st_size,
                            " bytes");
  return std::shared_ptr<SharedFile>(new SharedFile(std::move(owned)));
}

SharedFile::SharedFile(Descriptor fd)
    : fd_(std::move(fd)),
      header_(Mapping::of_file(fd_.get(), 0, page_size())),
      end_(reinterpret_cast<Counter*>(header_.data())) {}

uint64_t SharedFile::reserve(size_t bytes) {
  const uint64_t size = round_up(bytes, page_size());
  uint64_t begin = reserved();
  do {
    check<std::runtime_error>(size <= kBytes - begin, "could not reserve ", size,
                              " bytes of shared memory: ", kBytes - begin, " are left");
  } while (!end_->compare_exchange_weak(begin, begin + size, std::memory_order_relaxed));
  return begin;
}

Mapping SharedFile::map(uint64_t offset, size_t bytes) const {
  return Mapping::of_file(fd_.get(), offset, bytes);
}

void SharedFile::read(uint64_t offset, std::byte* out, size_t bytes) const {
  while (bytes > 0) {
    const ssize_t got = pread(fd_.get(), out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    check<std::runtime_error>(got > 0, "could not read shared memory: ", std::strerror(errno));
    out += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

void SharedFile::discard(uint64_t offset, uint64_t bytes) const noexcept {
  fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

}  // namespace aegis
