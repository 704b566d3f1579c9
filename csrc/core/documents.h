// Where documents begin and end in the files of a token store.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/token_store.h"

namespace aegis {

/// The documents of every file: consecutive, none empty, none across files. Immutable.
///
/// Positions are elements from the store's data(). Memory: 8 bytes per document, and at most 8 more
/// for every four of them, by which one is found with about two cache misses instead of a binary
/// search's twenty.
class Documents {
 public:
  /// `offsets` has for each file where its documents begin, in tokens from the file's first, and
  /// the file's token count behind: from 0 on, never decreasing. Equal neighbours are empty
  /// documents, which are left out. Throws std::invalid_argument, naming the file, where they are
  /// not so. Cost: reads the offsets once.
  Documents(std::shared_ptr<const TokenStore> store,
            const std::vector<std::vector<int64_t>>& offsets);

  const std::shared_ptr<const TokenStore>& store() const { return store_; }

  /// Documents in all files.
  int64_t count() const { return static_cast<int64_t>(bounds_.size() - store_->segments().size()); }

  /// The bounds of a file's documents: where each begins, and where the last one ends.
  const int64_t* begin(size_t segment) const { return bounds_.data() + first_[segment]; }
  const int64_t* end(size_t segment) const { return bounds_.data() + first_[segment + 1]; }

  /// The first bound of the segment beyond `position`, which must lie in the segment: where the
  /// document that holds it ends.
  const int64_t* after(size_t segment, int64_t position) const;

  /// Brings what after() reads for `position` towards the caches: step 0, and when that is there
  /// step 1.
  void prefetch(int64_t position, int step) const {
    const int64_t& bucket = buckets_[static_cast<size_t>(position >> shift_)];
    __builtin_prefetch(step == 0 ? &bucket : bounds_.data() + bucket);
  }

 private:
  std::shared_ptr<const TokenStore> store_;
  std::vector<int64_t> bounds_;   // of all files, ascending but for what two files share
  std::vector<size_t> first_;     // of each segment in bounds_, and the end
  int shift_ = 0;                 // a bucket is 2^shift_ positions
  std::vector<int64_t> buckets_;  // the first entry of bounds_ at or beyond each bucket's begin
};

/// Offsets of the documents in a file of which each begins with the token `id` (`begins`), or ends
/// with it, as the constructor of Documents takes them. What comes before the first such token, or
/// after the last, is a document too. Throws as TokenStore::verify(). Cost: reads the file once.
std::vector<int64_t> find_documents(const TokenStore& store, size_t segment, int64_t id,
                                    bool begins);

}  // namespace aegis
