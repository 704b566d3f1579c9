#include "core/token_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace aegis {
namespace {

/// Appends tokens [begin, begin + count), cut where documents end.
void cut(const Documents& documents, size_t segment, int64_t begin, int64_t count,
         std::vector<Piece>& out) {
  const int64_t end = begin + count;
  for (const int64_t* bound = documents.after(segment, begin); begin < end; ++bound) {
    const int64_t stop = std::min(*bound, end);
    out.push_back({begin, stop - begin, stop == *bound});
    begin = stop;
  }
}

/// The segment whose part of a numbering holds `index`: `first` has where each begins, and the end.
size_t find_segment(const std::vector<int64_t>& first, int64_t index) {
  if (first.size() == 2) return 0;
  return static_cast<size_t>(std::upper_bound(first.begin(), first.end(), index) - first.begin()) -
         1;
}

/// A piece, or what was cut off one, and its row.
struct Placed {
  uint32_t row;
  Piece piece;
};

/// Packs pieces, none longer than a row, into `rows` rows that have room for exactly all of them.
/// In the order of the pieces.
std::vector<Placed> best_fit(const std::vector<Piece>& pieces, int64_t rows, int64_t block_size) {
  // Pairs of numbers below 2^32, as one: they are ordered by the first, then by the second.
  const auto pair = [](int64_t high, int64_t low) {
    return static_cast<uint64_t>(high) << 32 | static_cast<uint64_t>(low);
  };
  const auto high = [](uint64_t both) { return static_cast<int64_t>(both >> 32); };
  const auto low = [](uint64_t both) { return static_cast<uint32_t>(both); };

  std::vector<uint64_t> longest_first;
  for (size_t i = 0; i < pieces.size(); ++i) {
    longest_first.push_back(pair(block_size - pieces[i].count, static_cast<int64_t>(i)));
  }
  std::sort(longest_first.begin(), longest_first.end());
  constexpr uint32_t kNowhere = UINT32_MAX;
  std::vector<uint32_t> row_of(pieces.size(), kNowhere);
  std::vector<uint64_t> room;  // (tokens, row) of rows that are not full, ascending
  for (int64_t row = 0; row < rows; ++row) room.push_back(pair(block_size, row));
  for (const uint64_t next : longest_first) {
    const int64_t count = block_size - high(next);
    const auto best = std::lower_bound(room.begin(), room.end(), pair(count, 0));
    if (best == room.end()) continue;
    const uint32_t row = row_of[low(next)] = low(*best);
    const int64_t left = high(*best) - count;
    if (left == 0) {
      room.erase(best);
    } else {
      const uint64_t rest = pair(left, row);
      const auto place = std::lower_bound(room.begin(), best, rest);
      std::move_backward(place, best, best + 1);
      *place = rest;
    }
  }
  // What fits nowhere is cut to fill the gaps, the largest first.
  std::vector<Placed> placed;
  placed.reserve(pieces.size() + static_cast<size_t>(rows));
  for (size_t i = 0; i < pieces.size(); ++i) {
    auto [begin, count, ends] = pieces[i];
    if (row_of[i] != kNowhere) {
      placed.push_back({row_of[i], pieces[i]});
      continue;
    }
    while (count > 0) {
      const int64_t taken = std::min(high(room.back()), count);
      placed.push_back({low(room.back()), {begin, taken, ends && taken == count}});
      begin += taken;
      count -= taken;
      room.back() -= pair(taken, 0);
      if (high(room.back()) == 0) room.pop_back();
    }
  }
  return placed;
}

void check_documents(const Documents* documents, int64_t block_size) {
  check<std::invalid_argument>(documents != nullptr, "documents: expected documents, got none");
  check<std::invalid_argument>(block_size >= 1, "block_size: expected at least 1, got ",
                               block_size);
}

void check_rows(int64_t rows, const TokenStore& store, int64_t block_size, const char* what) {
  check<std::invalid_argument>(rows > 0, store.files().front().path,
                               store.files().size() > 1 ? " and the other files: " : ": ", "no ",
                               what, " has block_size (", block_size, ") tokens");
}

}  // namespace

StreamRows::StreamRows(std::shared_ptr<const TokenWindows> windows,
                       std::shared_ptr<const Documents> documents)
    : windows_(std::move(windows)), documents_(std::move(documents)) {
  check<std::invalid_argument>(windows_ != nullptr, "windows: expected windows, got none");
  check<std::invalid_argument>(documents_ == nullptr || documents_->store() == windows_->store(),
                               "documents: expected those of the windows' store");
}

size_t StreamRows::pieces(int64_t index, std::vector<Piece>& out) const {
  const size_t segment = windows_->segment_of(index);
  const int64_t begin = windows_->offset(index);
  if (documents_ == nullptr) {
    out.push_back({begin, block_size(), false});
  } else {
    cut(*documents_, segment, begin, block_size(), out);
  }
  return segment;
}

void StreamRows::prefetch(int64_t index, int step) const {
  if (documents_ != nullptr && step < 2) documents_->prefetch(windows_->offset(index), step);
}

AlignedRows::AlignedRows(std::shared_ptr<const Documents> documents, int64_t block_size)
    : documents_(std::move(documents)), block_size_(block_size) {
  check_documents(documents_.get(), block_size);
  for (size_t s = 0; s < store()->segments().size(); ++s) {
    first_.push_back(count());
    const int64_t* bound = documents_->begin(s);
    const int64_t* last = documents_->end(s) - 1;
    while (*last - *bound >= block_size_) {
      begins_.push_back(*bound);
      bound = std::lower_bound(bound + 1, last, *bound + block_size_);
    }
  }
  first_.push_back(count());
  check_rows(count(), *store(), block_size, "file, from the begin of a document on,");
}

size_t AlignedRows::pieces(int64_t index, std::vector<Piece>& out) const {
  const size_t segment = find_segment(first_, index);
  cut(*documents_, segment, begins_[static_cast<size_t>(index)], block_size_, out);
  return segment;
}

void AlignedRows::prefetch(int64_t index, int step) const {
  const int64_t& begin = begins_[static_cast<size_t>(index)];
  if (step == 0) {
    __builtin_prefetch(&begin);
  } else {
    documents_->prefetch(begin, step - 1);
  }
}

PackedRows::PackedRows(std::shared_ptr<const Documents> documents, int64_t block_size,
                       int64_t kept_bytes)
    : documents_(std::move(documents)), block_size_(block_size), kept_bytes_(kept_bytes) {
  check_documents(documents_.get(), block_size);
  check<std::invalid_argument>(block_size <= int64_t{1} << 22, "block_size: expected at most 2^22 ",
                               "in packed rows, got ", block_size);
  for (const Segment& segment : store()->segments()) {
    const int64_t rows = segment.tokens / block_size_;
    first_.push_back(first_.back() + rows);
    first_group_.push_back(first_group_.back() + (rows + kGroupRows - 1) / kGroupRows);
  }
  check_rows(count(), *store(), block_size, "file");
  kept_ = std::vector<std::atomic<const Group*>>(static_cast<size_t>(first_group_.back()));
}

PackedRows::~PackedRows() {
  for (const auto& group : kept_) delete group.load(std::memory_order_acquire);
}

size_t PackedRows::pieces(int64_t index, std::vector<Piece>& out) const {
  const size_t segment = find_segment(first_, index);
  const int64_t row = index - first_[segment];
  const Group& own = group(segment, row / kGroupRows);
  const size_t r = static_cast<size_t>(row % kGroupRows);
  const int64_t begin = begin_of(segment, row / kGroupRows);
  for (uint32_t p = own.first[r]; p < own.first[r + 1]; ++p) {
    const auto [at, count] = own.pieces[p];
    out.push_back({begin + at, count >> 1, (count & 1) != 0});
  }
  return segment;
}

void PackedRows::prefetch(int64_t index, int step) const {
  const size_t segment = find_segment(first_, index);
  const int64_t row = index - first_[segment];
  const auto& place = kept_[static_cast<size_t>(first_group_[segment] + row / kGroupRows)];
  if (step == 0) return __builtin_prefetch(&place);
  const Group* known = place.load(std::memory_order_acquire);
  if (known == nullptr) return;
  const uint32_t& first = known->first[static_cast<size_t>(row % kGroupRows)];
  if (step == 1) {
    __builtin_prefetch(&first);
    __builtin_prefetch(&known->pieces);
  } else {
    __builtin_prefetch(known->pieces.data() + first);
  }
}

int64_t PackedRows::begin_of(size_t segment, int64_t group) const {
  return store()->segments()[segment].begin + group * kGroupRows * block_size_;
}

const PackedRows::Group& PackedRows::group(size_t segment, int64_t number) const {
  std::atomic<const Group*>& place = kept_[static_cast<size_t>(first_group_[segment] + number)];
  if (const Group* known = place.load(std::memory_order_acquire)) return *known;
  std::unique_ptr<const Group> packed = pack(segment, number);
  const int64_t bytes =
      static_cast<int64_t>(sizeof(Group) + packed->pieces.size() * sizeof(Stored));
  if (bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= kept_bytes_) {
    const Group* first = nullptr;
    if (place.compare_exchange_strong(first, packed.get(), std::memory_order_acq_rel)) {
      return *packed.release();
    }
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return *first;  // another thread was sooner
  }
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  thread_local std::unique_ptr<const Group> last;  // until the thread's next call
  last = std::move(packed);
  return *last;
}

std::unique_ptr<const PackedRows::Group> PackedRows::pack(size_t segment, int64_t number) const {
  const int64_t rows =
      std::min(kGroupRows, first_[segment + 1] - first_[segment] - number * kGroupRows);
  std::vector<Piece> documents, pieces;
  cut(*documents_, segment, begin_of(segment, number), rows * block_size_, documents);
  for (auto [at, count, ends] : documents) {
    for (; count > block_size_; at += block_size_, count -= block_size_) {
      pieces.push_back({at, block_size_, false});
    }
    pieces.push_back({at, count, ends});
  }
  std::vector<Placed> placed = best_fit(pieces, rows, block_size_);
  // By rows, and within a row by place in the file.
  auto group = std::make_unique<Group>();
  for (const Placed& part : placed) ++group->first[part.row + 1];
  std::partial_sum(group->first.begin(), group->first.end(), group->first.begin());
  std::array<uint32_t, kGroupRows + 1> next = group->first;
  group->pieces.resize(placed.size());
  for (const auto& [row, part] : placed) {
    group->pieces[next[row]++] = {
        static_cast<uint32_t>(part.begin - begin_of(segment, number)),
        static_cast<uint32_t>(part.count) << 1 | static_cast<uint32_t>(part.ends)};
  }
  return group;
}

}  // namespace aegis
