// Training windows over a token store: which stretch of the arena is sample i.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/token_store.h"

namespace aegis {

/// Windows of `block_size + 1` tokens (inputs, and targets one token later), `stride` apart. They
/// are numbered through all files in order, and none crosses from one file into the next.
///
/// A file of n tokens has floor((n - block_size - 1) / stride) + 1 windows, or none when it is
/// shorter: stride == block_size gives floor((n - 1) / block_size) disjoint blocks, stride == 1
/// every one of n - block_size starts. Memory: 8 bytes per file. Immutable.
class TokenWindows {
 public:
  /// Throws std::invalid_argument for block_size or stride below 1, or when no file is long enough.
  TokenWindows(std::shared_ptr<const TokenStore> store, int64_t block_size, int64_t stride);

  const std::shared_ptr<const TokenStore>& store() const { return store_; }
  int64_t block_size() const { return block_size_; }
  int64_t stride() const { return stride_; }

  /// Windows in all files.
  int64_t count() const { return first_.back(); }

  /// Tokens after the last window of each file, files without a window included whole: they are
  /// never delivered.
  int64_t tail_tokens() const { return tail_tokens_; }

  /// The segment of window `index`. Undefined unless 0 <= index < count(). O(log files), O(1) for
  /// one file.
  size_t segment_of(int64_t index) const;

  /// Where window `index` begins, in elements from the store's data(). Throws std::out_of_range
  /// unless 0 <= index < count(). Cost as segment_of().
  int64_t offset(int64_t index) const;

  /// offset() of each of `count` indices.
  void offsets(const int64_t* indices, int64_t count, int64_t* out) const;

  /// Verifies the files that hold these windows, each once; indices as for segment_of(). Throws as
  /// TokenStore::verify().
  void verify(const int64_t* indices, int64_t count) const;

 private:
  std::shared_ptr<const TokenStore> store_;
  int64_t block_size_;
  int64_t stride_;
  std::vector<int64_t> first_{0};  ///< window number at which each segment begins, and the end
  int64_t tail_tokens_ = 0;
};

}  // namespace aegis
