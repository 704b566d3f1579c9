#include "core/token_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "core/check.h"

namespace aegis {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

int64_t item_size(const TokenFile& file) { return static_cast<int64_t>(size_of(file.type)); }

int64_t payload_bytes(const TokenFile& file) { return file.tokens * item_size(file); }

/// Whether the tokens cannot be used where they lie in the file.
bool must_copy(const TokenFile& file) {
  return file.swapped || file.byte_offset % item_size(file) != 0;
}

/// Bytes of the payload's page that lie before the payload, which are mapped with it.
int64_t lead_in(const TokenFile& file) {
  return must_copy(file) ? 0 : file.byte_offset % static_cast<int64_t>(page_size());
}

/// Whether the description makes sense, before any file is opened.
void check_description(const TokenFile& file, const TokenFile& first) {
  check<std::invalid_argument>(file.type == first.type, file.path, ": expected dtype ",
                               name(first.type), ", as in ", first.path, ", got ", name(file.type));
  check<std::invalid_argument>(file.tokens > 0, file.path, ": expected at least 1 token, got ",
                               file.tokens);
  check<std::invalid_argument>(file.byte_offset >= 0, file.path,
                               ": expected tokens within the file, got byte offset ",
                               file.byte_offset);
  check<std::invalid_argument>(file.tokens <= (kMax - file.byte_offset) / item_size(file),
                               file.path, ": ", file.tokens, " tokens of ", name(file.type),
                               " are more than a file can hold");
}

void check_size(const TokenFile& file, int64_t size) {
  const int64_t expected = file.byte_offset + payload_bytes(file);
  check<std::invalid_argument>(size >= expected, file.path, ": expected at least ", expected,
                               " bytes (", file.tokens, " tokens of ", name(file.type),
                               " from byte ", file.byte_offset, "), got ", size);
}

struct stat describe(const TokenFile& file, int fd) {
  struct stat found{};
  check<std::runtime_error>(fstat(fd, &found) == 0, file.path,
                            ": could not look at the file: ", std::strerror(errno));
  check<std::runtime_error>(S_ISREG(found.st_mode), file.path, ": expected a file, got ",
                            S_ISDIR(found.st_mode) ? "a directory" : "something else");
  return found;
}

template <class Token>
Token byteswap(Token value) {
  if constexpr (sizeof(Token) == 2) return static_cast<Token>(__builtin_bswap16(value));
  if constexpr (sizeof(Token) == 4) return static_cast<Token>(__builtin_bswap32(value));
  if constexpr (sizeof(Token) == 8) return static_cast<Token>(__builtin_bswap64(value));
  return value;
}

void swap_bytes(std::byte* data, int64_t count, TokenType type) {
  with_token_type(type, [&]<class Token>(std::type_identity<Token>) {
    auto* tokens = reinterpret_cast<Token*>(data);
    for (int64_t i = 0; i < count; ++i) tokens[i] = byteswap(tokens[i]);
  });
}

void read_copy(const TokenFile& file, int fd, std::byte* into) {
  const int64_t bytes = payload_bytes(file);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, into + done, static_cast<size_t>(bytes - done),
                              static_cast<off_t>(file.byte_offset + done));
    if (got < 0 && errno == EINTR) continue;
    check<std::runtime_error>(got >= 0, file.path, ": could not read: ", std::strerror(errno));
    check<std::runtime_error>(got > 0, file.path, ": expected ", file.byte_offset + bytes,
                              " bytes, the file ended at ", file.byte_offset + done);
    done += got;
  }
  if (file.swapped) swap_bytes(into, file.tokens, file.type);
}

}  // namespace

TokenStore::TokenStore(std::vector<TokenFile> files) : files_(std::move(files)) {
  check<std::invalid_argument>(!files_.empty(), "files: expected at least one, got none");
  std::vector<size_t> starts{0};  // of each file within the range, and the end
  for (const TokenFile& file : files_) {
    check_description(file, files_.front());
    const size_t bytes = static_cast<size_t>(lead_in(file) + payload_bytes(file));
    const size_t room = round_up(bytes, page_size());
    check<std::invalid_argument>(room <= static_cast<size_t>(kMax) - starts.back(), file.path,
                                 ": with this file the data is larger than 2^63 bytes");
    starts.push_back(starts.back() + room);
  }

  range_ = AddressRange(starts.back());
  data_ = range_.data() + lead_in(files_.front());
  sources_.resize(files_.size());
  std::vector<uintptr_t> addresses;
  for (size_t i = 0; i < files_.size(); ++i) {
    map(i, starts[i], starts[i + 1] - starts[i]);
    std::byte* part = range_.data() + starts[i];
    addresses.push_back(reinterpret_cast<uintptr_t>(part));
    const int64_t begin = (part + lead_in(files_[i]) - data_) / item_size(files_[i]);
    segments_.push_back({begin, files_[i].tokens});
    tokens_ += files_[i].tokens;
  }
  // A fault in a mapping reads as much as the device's read-ahead says, 8 MB on some machines, and
  // waits for it: readers say what they want instead (will_read).
  range_.expect_random_access();
  fits_memory_ = range_.size() / page_size() < static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) / 2;
  guard_ = std::make_unique<FaultGuard>(range_.data(), range_.size(), std::move(addresses));
}

void TokenStore::map(size_t index, size_t at, size_t bytes) {
  const TokenFile& file = files_[index];
  Descriptor fd(open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  check<std::runtime_error>(static_cast<bool>(fd), file.path,
                            ": could not open: ", std::strerror(errno));
  const struct stat found = describe(file, fd.get());
  check_size(file, found.st_size);

  const int failed = must_copy(file)
                         ? range_.map_anonymous(at, bytes)
                         : range_.map_file(at, bytes, fd.get(),
                                           static_cast<uint64_t>(file.byte_offset - lead_in(file)));
  check<std::runtime_error>(failed == 0, file.path, ": could not map ", bytes,
                            " bytes: ", std::strerror(failed),
                            failed == ENOMEM ? " (or more mappings than vm.max_map_count)" : "");
  if (must_copy(file)) {
    read_copy(file, fd.get(), range_.data() + at);
    return;
  }
  sources_[index].device = found.st_dev;
  sources_[index].inode = found.st_ino;
  if (files_.size() <= kMaxDescriptors) sources_[index].fd = std::move(fd);
}

void TokenStore::will_read(int64_t begin, int64_t count) const {
  // Neighbours come along where there is room to keep them: they are wanted later in the epoch.
  const size_t block = fits_memory_ ? std::max(kReadBlock, page_size()) : page_size();
  const size_t item = size_of(type()), lead = static_cast<size_t>(data_ - range_.data());
  const size_t first = (lead + static_cast<size_t>(begin) * item) / block * block;
  const size_t last = lead + static_cast<size_t>(begin + count) * item;
  range_.read_soon(first, std::min(round_up(last, block), range_.size()) - first);
}

void TokenStore::verify(size_t segment) const {
  const TokenFile& file = files_.at(segment);
  if (must_copy(file)) return;
  const Source& source = sources_[segment];
  const int64_t expected = file.byte_offset + payload_bytes(file);
  struct stat now{};
  const int failed = source.fd ? fstat(source.fd.get(), &now) : stat(file.path.c_str(), &now);
  const bool same_file = failed == 0 && now.st_dev == source.device && now.st_ino == source.inode;
  check<std::runtime_error>(!same_file || now.st_size >= expected, file.path, ": expected ",
                            expected, " bytes, found ", now.st_size,
                            ": the file was cut short while it was in use");
  check<std::runtime_error>(!guard_->damaged(segment), file.path, ": expected ", expected,
                            " readable bytes, but a page could not be read: the file was cut "
                            "short for a while, or its device failed");
}

void TokenStore::verify_all() const {
  arm_fault_handler();
  for (size_t i = 0; i < files_.size(); ++i) verify(i);
}

}  // namespace aegis
