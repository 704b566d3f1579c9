#include "core/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/check.h"

namespace aegis {

void ByteSource::read(int64_t offset, std::span<std::byte> into) const {
  check_range(offset, into.size(), 1);
  if (!into.empty()) read_checked(offset, into);
}

void ByteSource::check_range(int64_t offset, uint64_t count, size_t item) const {
  const bool inside =
      0 <= offset && offset <= size() && count <= static_cast<uint64_t>(size() - offset) / item;
  check<std::invalid_argument>(inside, path(), ": expected ", count, " items of ", item,
                               " bytes from byte ", offset, ", the file has ", size(), " bytes");
}

FileSource::FileSource(std::string path)
    : path_(std::move(path)),
      fd_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)) {
  check<std::runtime_error>(static_cast<bool>(fd_), path_,
                            ": could not open: ", std::strerror(errno));
  struct stat found{};
  check<std::runtime_error>(fstat(fd_.get(), &found) == 0, path_,
                            ": could not look at the file: ", std::strerror(errno));
  check<std::runtime_error>(S_ISREG(found.st_mode), path_, ": expected a file, got ",
                            S_ISDIR(found.st_mode) ? "a directory" : "something else");
  size_ = found.st_size;
}

void FileSource::read_checked(int64_t offset, std::span<std::byte> into) const {
  for (size_t done = 0; done < into.size();) {
    const ssize_t got = pread(fd_.get(), into.data() + done, into.size() - done,
                              static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    check<std::runtime_error>(got >= 0, path_, ": could not read: ", std::strerror(errno));
    check<std::runtime_error>(got > 0, path_, ": expected ", size_, " bytes, the file ended at ",
                              offset + static_cast<int64_t>(done),
                              ": it was cut short while it was read");
    done += static_cast<size_t>(got);
  }
}

}  // namespace aegis
