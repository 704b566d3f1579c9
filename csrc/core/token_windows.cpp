#include "core/token_windows.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace aegis {

TokenWindows::TokenWindows(std::shared_ptr<const TokenStore> store, int64_t block_size,
                           int64_t stride)
    : store_(std::move(store)), block_size_(block_size), stride_(stride) {
  check<std::invalid_argument>(store_ != nullptr, "store: expected a token store, got none");
  check<std::invalid_argument>(block_size >= 1, "block_size: expected at least 1, got ",
                               block_size);
  check<std::invalid_argument>(stride >= 1, "stride: expected at least 1, got ", stride);
  int64_t longest = 0;
  for (const Segment& segment : store_->segments()) {
    const int64_t n = segment.tokens;
    longest = std::max(longest, n);
    // n - block_size - 1 is where the last window may begin; it cannot overflow where n is larger.
    const int64_t windows = n > block_size ? (n - block_size - 1) / stride + 1 : 0;
    const int64_t used = windows > 0 ? (windows - 1) * stride + block_size + 1 : 0;
    first_.push_back(first_.back() + windows);
    tail_tokens_ += n - used;
  }
  const bool several = store_->files().size() > 1;
  check<std::invalid_argument>(
      count() > 0, store_->files().front().path,
      several ? " and the other files: the longest has " : ": the file has ", longest,
      " tokens, but block_size ", block_size, " needs at least one more token than block_size");
}

size_t TokenWindows::segment_of(int64_t index) const {
  if (first_.size() == 2) return 0;
  // The last segment that begins at or before the window: those without windows come before it.
  return static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), index) -
                             first_.begin()) -
         1;
}

int64_t TokenWindows::offset(int64_t index) const {
  check<std::out_of_range>(0 <= index && index < count(), "index: expected 0 to ", count() - 1,
                           ", got ", index);
  const size_t segment = segment_of(index);
  return store_->segments()[segment].begin + (index - first_[segment]) * stride_;
}

void TokenWindows::offsets(const int64_t* indices, int64_t count, int64_t* out) const {
  for (int64_t i = 0; i < count; ++i) out[i] = offset(indices[i]);
}

void TokenWindows::verify(const int64_t* indices, int64_t count) const {
  if (first_.size() == 2) return store_->verify(0);
  if (count == 1) return store_->verify(segment_of(*indices));
  std::vector<size_t> segments(static_cast<size_t>(count));
  std::transform(indices, indices + count, segments.begin(),
                 [&](int64_t index) { return segment_of(index); });
  std::sort(segments.begin(), segments.end());
  segments.erase(std::unique(segments.begin(), segments.end()), segments.end());
  for (size_t segment : segments) store_->verify(segment);
}

}  // namespace aegis
