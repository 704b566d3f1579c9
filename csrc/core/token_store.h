// Token files as one flat arena: mapped one after another, read in place, never copied.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/descriptor.h"
#include "core/dtype.h"
#include "core/fault_guard.h"
#include "core/mapping.h"

namespace aegis {

/// Where the tokens of a file lie.
struct TokenFile {
  std::string path;
  TokenType type;
  int64_t byte_offset;   ///< of the first token
  int64_t tokens;        ///< at least 1
  bool swapped = false;  ///< stored in the other byte order
};

/// The tokens of one file within the arena, in elements from TokenStore::data().
struct Segment {
  int64_t begin;
  int64_t tokens;
};

/// Maps every file read-only into one range of addresses, in the order given. A file whose
/// tokens are byte-swapped, or not aligned for their type, is read into memory in its place
/// instead.
///
/// Element offsets run from data(), where the first file's tokens begin, to extent(). What lies
/// between two segments (headers, the rest of a page) is readable but holds no tokens.
///
/// Nothing is read ahead but what readers announce by will_read().
///
/// The memory is private: writing to it through a tensor changes a copy of that page, not the file.
/// It lives as long as this object, so users hold a shared_ptr. All methods are const and may be
/// called from any thread.
///
/// A file that another process cuts short never ends this process: see core/fault_guard.h. Readers
/// get zeroes there, and call verify() after reading, before they use what they read.
class TokenStore {
 public:
  /// Throws std::invalid_argument where a file is not as described (its type is another than the
  /// first one's, it is shorter than its tokens) and std::runtime_error where
  /// the system refuses (missing, unreadable, a directory, no memory). Messages begin with the
  /// path. Cost: one open and one mmap per file, about 10 us; nothing is read but what is copied.
  explicit TokenStore(std::vector<TokenFile> files);

  TokenType type() const { return files_.front().type; }
  const void* data() const { return data_; }
  int64_t extent() const { return segments_.back().begin + segments_.back().tokens; }
  int64_t tokens() const { return tokens_; }
  const std::vector<TokenFile>& files() const { return files_; }
  const std::vector<Segment>& segments() const { return segments_; }

  /// Starts to read these elements from disk, without waiting, if they are not in memory: reads of
  /// one batch then overlap instead of waiting for each other. Data that fits into half of the
  /// machine's memory is read in blocks of kReadBlock. Costs a system call, about 0.5 us.
  void will_read(int64_t begin, int64_t count) const;

  static constexpr size_t kReadBlock = 128 << 10;  // bytes: Linux's usual read-ahead

  /// Throws std::runtime_error naming the file, the size expected and the size found where the file
  /// was cut short or a page of it could not be read. Files replaced by another of the same name
  /// are no error: the mapping still holds the old one. Cost: one fstat, about 0.3 us.
  void verify(size_t segment) const;

  /// verify() for every file, and puts the SIGBUS handler first again. For the start of an epoch.
  void verify_all() const;

  /// With more files than this, descriptors are closed after mapping, so that 10^4 files do not
  /// use up the process's descriptors. verify() then asks by path, where a cut within the last page
  /// of a file that was also renamed or deleted goes unseen.
  static constexpr size_t kMaxDescriptors = 128;

 private:
  /// The file behind a mapping; a file that was read into memory has none.
  struct Source {
    Descriptor fd;
    dev_t device = 0;
    ino_t inode = 0;
  };

  void map(size_t index, size_t at, size_t bytes);

  std::vector<TokenFile> files_;
  std::vector<Segment> segments_;
  std::vector<Source> sources_;
  AddressRange range_;
  std::unique_ptr<FaultGuard> guard_;  // after range_: the guard ends before the mapping
  const std::byte* data_ = nullptr;
  int64_t tokens_ = 0;
  bool fits_memory_ = false;
};

}  // namespace aegis
