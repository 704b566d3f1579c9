#include "core/token_rows.h"

#include <algorithm>
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
  const int64_t rows = first_[segment + 1] - first_[segment];
  const int64_t own_rows = std::min(kGroupRows, rows - number * kGroupRows);
  const int64_t begin = begin_of(segment, number);
  std::vector<Piece> whole, pieces, left_over;
  cut(*documents_, segment, begin, own_rows * block_size_, whole);
  for (auto [at, count, ends] : whole) {
    for (; count > block_size_; at += block_size_, count -= block_size_) {
      pieces.push_back({at, block_size_, false});
    }
    pieces.push_back({at, count, ends});
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.count > b.count; });

  std::array<std::vector<Piece>, kGroupRows> contents;
  std::vector<std::pair<int64_t, size_t>> room;  // (tokens, row), ascending; rows that have some
  for (size_t r = 0; r < static_cast<size_t>(own_rows); ++r) room.emplace_back(block_size_, r);
  for (const Piece& piece : pieces) {
    const auto best = std::lower_bound(room.begin(), room.end(), std::pair{piece.count, size_t{0}});
    if (best == room.end()) {
      left_over.push_back(piece);
      continue;
    }
    const auto [tokens, r] = *best;
    room.erase(best);
    contents[r].push_back(piece);
    const std::pair rest{tokens - piece.count, r};
    if (rest.first > 0) room.insert(std::upper_bound(room.begin(), room.end(), rest), rest);
  }
  // The rows have room for exactly what is left over.
  for (Piece piece : left_over) {
    while (piece.count > 0) {
      auto& [tokens, r] = room.back();
      const int64_t count = std::min(tokens, piece.count);
      contents[r].push_back({piece.begin, count, piece.ends && count == piece.count});
      piece.begin += count;
      piece.count -= count;
      tokens -= count;
      if (tokens == 0) room.pop_back();
    }
  }
  auto group = std::make_unique<Group>();
  group->pieces.reserve(pieces.size() + left_over.size());
  for (size_t r = 0; r < contents.size(); ++r) {
    std::sort(contents[r].begin(), contents[r].end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    for (const auto& [at, count, ends] : contents[r]) {
      group->pieces.push_back({static_cast<uint32_t>(at - begin),
                               static_cast<uint32_t>(count) << 1 | static_cast<uint32_t>(ends)});
    }
    group->first[r + 1] = static_cast<uint32_t>(group->pieces.size());
  }
  return group;
}

}  // namespace aegis
