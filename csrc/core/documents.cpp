#include "core/documents.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"

namespace aegis {
namespace {

constexpr int64_t kPerBucket = 8;  // documents in a bucket, on average
constexpr int64_t kStride = 512;   // tokens looked at together

/// Calls `found(i)` for every i below n with tokens[i] == id, in order.
template <class Token, class Found>
void for_each_match(const Token* tokens, int64_t n, Token id, Found&& found) {
  for (int64_t begin = 0; begin < n; begin += kStride) {
    const int64_t end = std::min(begin + kStride, n);
    Token any = 0;  // no branch, and one type, so that the loop becomes vector instructions
    for (int64_t i = begin; i < end; ++i) any |= static_cast<Token>(tokens[i] == id);
    if (any == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (tokens[i] == id) found(i);
    }
  }
}

}  // namespace

Documents::Documents(std::shared_ptr<const TokenStore> store,
                     const std::vector<std::vector<int64_t>>& offsets)
    : store_(std::move(store)) {
  using Bad = std::invalid_argument;
  check<Bad>(store_ != nullptr, "store: expected a token store, got none");
  const std::vector<Segment>& segments = store_->segments();
  check<Bad>(offsets.size() == segments.size(), "documents: expected offsets for each of ",
             segments.size(), " files, got ", offsets.size());
  for (size_t s = 0; s < segments.size(); ++s) {
    const auto& [begin, tokens] = segments[s];
    const std::string& path = store_->files()[s].path;
    const std::vector<int64_t>& own = offsets[s];
    check<Bad>(own.size() >= 2 && own.front() == 0 && own.back() == tokens, path,
               ": documents: expected offsets from 0 to the file's ", tokens, " tokens, got ",
               own.size(), own.empty() ? " offsets" : " offsets, from ",
               own.empty() ? "" : std::to_string(own.front()), own.empty() ? "" : " to ",
               own.empty() ? "" : std::to_string(own.back()));
    first_.push_back(bounds_.size());
    bounds_.push_back(begin);
    for (size_t i = 1; i < own.size(); ++i) {
      check<Bad>(own[i] >= own[i - 1], path, ": documents: offset ", i, " is ", own[i],
                 ", less than the one before, ", own[i - 1]);
      if (own[i] > own[i - 1]) bounds_.push_back(begin + own[i]);
    }
  }
  first_.push_back(bounds_.size());
  const int64_t extent = store_->extent();
  const int64_t width = std::max<int64_t>(1, extent / std::max<int64_t>(1, count()) * kPerBucket);
  shift_ = static_cast<int>(std::bit_width(static_cast<uint64_t>(width))) - 1;
  buckets_.reserve(static_cast<size_t>(extent >> shift_) + 2);
  size_t at = 0;
  for (int64_t position = 0; position <= extent; position += int64_t{1} << shift_) {
    while (at < bounds_.size() && bounds_[at] < position) ++at;
    buckets_.push_back(static_cast<int64_t>(at));
  }
  buckets_.push_back(static_cast<int64_t>(bounds_.size()));
}

const int64_t* Documents::after(size_t segment, int64_t position) const {
  const size_t bucket = static_cast<size_t>(position >> shift_);
  const int64_t* from = bounds_.data() + buckets_[bucket];
  const int64_t* to = bounds_.data() + buckets_[bucket + 1];
  // Where no bound of the bucket lies beyond the position, the next bucket's first one does.
  return std::clamp(std::upper_bound(from, to, position), begin(segment), end(segment) - 1);
}

std::vector<int64_t> find_documents(const TokenStore& store, size_t segment, int64_t id,
                                    bool begins) {
  const auto& [begin, tokens] = store.segments().at(segment);
  std::vector<int64_t> offsets{0};
  with_token_type(store.type(), [&]<class Token>(std::type_identity<Token>) {
    if (!std::in_range<Token>(id)) return;
    const Token* data = static_cast<const Token*>(store.data()) + begin;
    for_each_match(data, tokens, static_cast<Token>(id), [&](int64_t i) {
      const int64_t bound = begins ? i : i + 1;
      if (bound > offsets.back()) offsets.push_back(bound);
    });
  });
  if (offsets.back() < tokens) offsets.push_back(tokens);
  store.verify(segment);
  return offsets;
}

}  // namespace aegis
