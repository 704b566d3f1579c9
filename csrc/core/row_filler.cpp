#include "core/row_filler.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "kernels/extract_batch.h"

namespace aegis {
namespace {

using Clock = std::chrono::steady_clock;

constexpr FieldType kInt64{0, 64}, kInt32{0, 32}, kBool{6, 8};
constexpr int64_t kPaddingTarget = -100;  // torch.nn.functional.cross_entropy's ignore_index
constexpr size_t kRowsAhead = 6;          // whose tokens are prefetched, as in extract_rows.h
// As in TokenFiller: the longest that a row takes which is in memory, here with several pieces.
constexpr auto kWarmPiece = std::chrono::microseconds(10);

/// Brings a piece's tokens, and the one behind them, into the second-level cache: see
/// extract_rows.h.
void prefetch(const TokenStore& store, const Piece& piece) {
  constexpr uintptr_t kLine = 64;  // bytes
  constexpr int kSecondLevel = 2;
  const int64_t item = static_cast<int64_t>(size_of(store.type()));
  const char* first = static_cast<const char*>(store.data()) + piece.begin * item;
  const char* last = first + piece.count * item;
  for (const char* line = first - reinterpret_cast<uintptr_t>(first) % kLine; line <= last;
       line += kLine) {
    __builtin_prefetch(line, 0, kSecondLevel);
  }
}

int64_t block_size_of(const std::vector<RowSource>& sources) {
  using Bad = std::invalid_argument;
  check<Bad>(!sources.empty(), "sources: expected at least one, got none");
  for (const RowSource& source : sources) {
    check<Bad>(source.rows != nullptr, "sources: expected rows, got none");
    check<Bad>(source.rows->block_size() == sources.front().rows->block_size(),
               "sources: expected one block_size, got ", sources.front().rows->block_size(),
               " and ", source.rows->block_size());
  }
  return sources.front().rows->block_size();
}

}  // namespace

/// A batch's rows: row r has pieces[first[r]] to pieces[first[r + 1] - 1]; a row of padding none.
struct RowFiller::Plan {
  std::vector<Piece> pieces;
  std::vector<size_t> first;
  std::vector<size_t> sources;                      // of each row
  std::vector<std::pair<size_t, size_t>> segments;  // read, of which source: each once

  size_t rows() const { return first.size() - 1; }
  bool padding(size_t row) const { return first[row] == first[row + 1]; }
};

RowFiller::RowFiller(std::vector<RowSource> sources, const RowFields& wanted)
    : sources_(std::move(sources)),
      wanted_(wanted),
      block_size_(block_size_of(sources_)),
      most_pieces_(std::min(wanted.max_documents.value_or(INT64_MAX), block_size_)) {
  using Bad = std::invalid_argument;
  check<Bad>(wanted.max_documents.value_or(1) >= 1, "max_documents: expected at least 1, got ",
             wanted.max_documents.value_or(1));
  for (const auto& [rows, ignore_index] : sources_) {
    check<Bad>(ignore_index || rows->contiguous(),
               "ignore_index: expected a number: in these rows the token after a document's last "
               "one is not the next in its file");
    first_.push_back(first_.back() + rows->count());
  }
  fields_ = {{kInt64, {block_size_}}, {kInt64, {block_size_}}};
  if (wanted.document_ids) fields_.push_back({kInt32, {block_size_}});
  if (wanted.position_ids) fields_.push_back({kInt32, {block_size_}});
  if (wanted.valid) fields_.push_back({kBool, {}});
  if (wanted.cu_seqlens) fields_.push_back({kInt32, {most_pieces_ + 2}});
}

void RowFiller::verify() const {
  for (const RowSource& source : sources_) source.rows->store()->verify_all();
}

size_t RowFiller::source_of(int64_t index) const {
  if (sources_.size() == 1 || index == kPadding) return 0;
  return static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), index) -
                             first_.begin()) -
         1;
}

void RowFiller::read_plan(const int64_t* indices, int64_t count, Plan& plan) const {
  plan.pieces.clear();
  plan.first.assign(1, 0);
  plan.sources.clear();
  plan.segments.clear();
  for (int64_t i = 0; i < count; ++i) plan.sources.push_back(source_of(indices[i]));
  const auto for_each_row = [&](auto&& call) {
    for (int64_t i = 0; i < count; ++i) {
      const size_t source = plan.sources[static_cast<size_t>(i)];
      if (indices[i] != kPadding) call(source, indices[i] - first_[source]);
      plan.first[static_cast<size_t>(i) + 1] = plan.pieces.size();
    }
  };
  plan.first.resize(static_cast<size_t>(count) + 1);
  for (int step = 0; step < TokenRows::kPrefetchSteps; ++step) {
    for_each_row([&](size_t source, int64_t row) { sources_[source].rows->prefetch(row, step); });
  }
  for_each_row([&](size_t source, int64_t row) {
    const std::pair read{source, sources_[source].rows->pieces(row, plan.pieces)};
    if (plan.segments.empty() || plan.segments.back() != read) plan.segments.push_back(read);
  });
  std::sort(plan.segments.begin(), plan.segments.end());
  plan.segments.erase(std::unique(plan.segments.begin(), plan.segments.end()), plan.segments.end());
}

void RowFiller::check_plan(const int64_t* indices, const Plan& plan) const {
  if (!wanted_.cu_seqlens) return;
  check<std::invalid_argument>(static_cast<int64_t>(plan.rows()) <= INT32_MAX / block_size_,
                               "cu_seqlens: expected batches of fewer than 2^31 tokens, got ",
                               plan.rows(), " rows of ", block_size_);
  for (size_t row = 0; row < plan.rows(); ++row) {
    const int64_t pieces = static_cast<int64_t>(plan.first[row + 1] - plan.first[row]);
    check<std::invalid_argument>(pieces <= most_pieces_, "max_documents: expected rows of at most ",
                                 most_pieces_, " documents, got ", pieces, " in row ",
                                 indices[row]);
  }
}

template <class Token>
void RowFiller::write_row(const Plan& plan, size_t row, int64_t* inputs, int64_t* targets) const {
  const auto& [rows, ignore_index] = sources_[plan.sources[row]];
  const Token* arena = static_cast<const Token*>(rows->store()->data());
  const Piece *first = plan.pieces.data() + plan.first[row],
              *end = plan.pieces.data() + plan.first[row + 1];
  // The row as a window: where it lies in the file, or else put together in the caches.
  const Token* window = arena + first->begin;
  const bool in_one = std::adjacent_find(first, end, [](const Piece& piece, const Piece& next) {
                        return piece.begin + piece.count != next.begin;
                      }) == end;
  if (!in_one || first->begin + block_size_ >= rows->store()->extent()) {
    thread_local std::vector<Token> joined;
    joined.resize(std::max(joined.size(), static_cast<size_t>(block_size_) + 1));
    Token* out = joined.data();
    for (const Piece* piece = first; piece < end; out += piece->count, ++piece) {
      std::memcpy(out, arena + piece->begin, static_cast<size_t>(piece->count) * sizeof(Token));
    }
    window = joined.data();
  }
  constexpr int64_t kBegin = 0;
  kernels::extract_batch_kernel<Token, int64_t>()(
      {window, &kBegin, 1, block_size_, inputs, targets});
  // A piece's last token is followed by another piece's first, which is not its target.
  if (in_one && !ignore_index) return;
  for (const Piece* piece = first; piece < end; ++piece) {
    targets += piece->count;
    const bool no_next = piece->ends && ignore_index;
    targets[-1] =
        no_next ? *ignore_index : static_cast<int64_t>(arena[piece->begin + piece->count]);
  }
}

void RowFiller::write_tokens(const Plan& plan, const FieldPointers& fields) const {
  int64_t* inputs = reinterpret_cast<int64_t*>(fields[0]);
  int64_t* targets = reinterpret_cast<int64_t*>(fields[1]);
  size_t ahead = 0;  // row whose tokens are prefetched next
  for (size_t row = 0; row < plan.rows(); ++row, inputs += block_size_, targets += block_size_) {
    if (plan.padding(row)) {
      std::fill_n(inputs, block_size_, 0);
      std::fill_n(targets, block_size_, sources_.front().ignore_index.value_or(kPaddingTarget));
      continue;
    }
    for (; ahead < std::min(row + 1 + kRowsAhead, plan.rows()); ++ahead) {
      const TokenStore& store = *sources_[plan.sources[ahead]].rows->store();
      for (size_t p = plan.first[ahead]; p < plan.first[ahead + 1]; ++p) {
        prefetch(store, plan.pieces[p]);
      }
    }
    const TokenType type = sources_[plan.sources[row]].rows->store()->type();
    with_token_type(type, [&]<class Token>(std::type_identity<Token>) {
      write_row<Token>(plan, row, inputs, targets);
    });
  }
}

void RowFiller::write_documents(const Plan& plan, const FieldPointers& fields) const {
  const Piece padding{0, block_size_, true};
  size_t f = 2;
  int32_t* ids = wanted_.document_ids ? reinterpret_cast<int32_t*>(fields[f++]) : nullptr;
  int32_t* positions = wanted_.position_ids ? reinterpret_cast<int32_t*>(fields[f++]) : nullptr;
  bool* valid = wanted_.valid ? reinterpret_cast<bool*>(fields[f++]) : nullptr;
  int32_t* bounds = wanted_.cu_seqlens ? reinterpret_cast<int32_t*>(fields[f++]) : nullptr;
  const size_t rows = plan.rows();
  int32_t* const bounds_end =
      bounds == nullptr ? nullptr : bounds + rows * static_cast<size_t>(most_pieces_ + 2);
  int32_t total = 0, pieces = 0;
  if (bounds != nullptr) *bounds++ = 0;
  for (size_t row = 0; row < rows; ++row) {
    const bool empty = plan.padding(row);
    const Piece* piece = empty ? &padding : plan.pieces.data() + plan.first[row];
    const Piece* end = empty ? piece + 1 : plan.pieces.data() + plan.first[row + 1];
    if (valid != nullptr) valid[row] = !empty;
    for (int32_t id = 0; piece < end; ++piece, ++id) {
      const int64_t count = piece->count;
      if (ids != nullptr) ids = std::fill_n(ids, count, id);
      if (positions != nullptr) {
        std::iota(positions, positions + count, 0);
        positions += count;
      }
      if (bounds != nullptr) {
        *bounds++ = total += static_cast<int32_t>(count);
        ++pieces;
      }
    }
  }
  if (bounds != nullptr) {
    if (wanted_.max_documents) std::fill(bounds, bounds_end, total);
    bounds_end[-1] = pieces;
  }
}

int64_t RowFiller::elements(size_t field, int64_t count, const FieldPointers& fields) const {
  if (!wanted_.cu_seqlens || field + 1 < fields_.size()) return -1;
  if (wanted_.max_documents) return count * most_pieces_ + 1;
  return reinterpret_cast<const int32_t*>(fields[field])[count * (most_pieces_ + 2) - 1] + 1;
}

void RowFiller::fill(const int64_t* indices, int64_t count, const FieldPointers& fields) const {
  thread_local Plan plan;  // grows to the largest batch and is then reused
  read_plan(indices, count, plan);
  check_plan(indices, plan);
  if (cold_.load(std::memory_order_relaxed)) {
    for (size_t row = 0; row < plan.rows(); ++row) {
      const TokenStore& store = *sources_[plan.sources[row]].rows->store();
      for (size_t p = plan.first[row]; p < plan.first[row + 1]; ++p) {
        store.will_read(plan.pieces[p].begin, plan.pieces[p].count);
      }
    }
  }
  const Clock::time_point start = Clock::now();
  write_tokens(plan, fields);
  const auto warm = static_cast<int64_t>(plan.pieces.size()) * kWarmPiece;
  cold_.store(Clock::now() - start > warm, std::memory_order_relaxed);
  if (fields_.size() > 2) write_documents(plan, fields);
  for (const auto& [source, segment] : plan.segments)
    sources_[source].rows->store()->verify(segment);
}

}  // namespace aegis
