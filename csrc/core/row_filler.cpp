#include "core/row_filler.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "kernels/extract_batch.h"

namespace aegis {
namespace {

using Clock = std::chrono::steady_clock;

constexpr FieldType kInt64{0, 64}, kInt32{0, 32}, kBool{6, 8};
constexpr int64_t kPaddingTarget = -100;  // torch.nn.functional.cross_entropy's ignore_index
constexpr size_t kPiecesAhead = 8;        // whose tokens are prefetched, as in extract_rows.h
// As in TokenFiller: the longest that a row takes which is in memory, here with several pieces.
constexpr auto kWarmPiece = std::chrono::microseconds(10);

template <class Token>
void prefetch(const Token* tokens, int64_t count) {
  constexpr int64_t kLine = 64;  // bytes
  const char* end = reinterpret_cast<const char*>(tokens + count);
  for (const char* line = reinterpret_cast<const char*>(tokens); line < end; line += kLine) {
    __builtin_prefetch(line);
  }
}

}  // namespace

/// A batch's rows: row r has pieces[first[r]] to pieces[first[r + 1] - 1]; a row of padding none.
struct RowFiller::Plan {
  std::vector<Piece> pieces;
  std::vector<size_t> first;
  std::vector<size_t> segments;  // of the files read, each once

  size_t rows() const { return first.size() - 1; }
  bool padding(size_t row) const { return first[row] == first[row + 1]; }
};

RowFiller::RowFiller(std::shared_ptr<const TokenRows> rows, const RowFields& wanted)
    : rows_(std::move(rows)),
      wanted_(wanted),
      most_pieces_(std::min(wanted.max_documents.value_or(INT64_MAX), rows_->block_size())) {
  using Bad = std::invalid_argument;
  check<Bad>(wanted.max_documents.value_or(1) >= 1, "max_documents: expected at least 1, got ",
             wanted.max_documents.value_or(1));
  check<Bad>(wanted.ignore_index || rows_->contiguous(),
             "ignore_index: expected a number: in packed rows the token after a document's last "
             "one is not the next in its file");
  const int64_t block = rows_->block_size();
  fields_ = {{kInt64, {block}}, {kInt64, {block}}};
  if (wanted.document_ids) fields_.push_back({kInt32, {block}});
  if (wanted.position_ids) fields_.push_back({kInt32, {block}});
  if (wanted.valid) fields_.push_back({kBool, {}});
  if (wanted.cu_seqlens) fields_.push_back({kInt32, {most_pieces_ + 2}});
}

void RowFiller::read_plan(const int64_t* indices, int64_t count, Plan& plan) const {
  plan.pieces.clear();
  plan.first.assign(1, 0);
  plan.segments.clear();
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] != kPadding) {
      const size_t segment = rows_->pieces(indices[i], plan.pieces);
      if (plan.segments.empty() || plan.segments.back() != segment)
        plan.segments.push_back(segment);
    }
    plan.first.push_back(plan.pieces.size());
  }
  std::sort(plan.segments.begin(), plan.segments.end());
  plan.segments.erase(std::unique(plan.segments.begin(), plan.segments.end()),
                      plan.segments.end());
}

void RowFiller::check_plan(const int64_t* indices, const Plan& plan) const {
  if (!wanted_.cu_seqlens) return;
  const int64_t block = rows_->block_size();
  check<std::invalid_argument>(static_cast<int64_t>(plan.rows()) <= INT32_MAX / block,
                               "cu_seqlens: expected batches of fewer than 2^31 tokens, got ",
                               plan.rows(), " rows of ", block);
  for (size_t row = 0; row < plan.rows(); ++row) {
    const int64_t pieces = static_cast<int64_t>(plan.first[row + 1] - plan.first[row]);
    check<std::invalid_argument>(pieces <= most_pieces_, "max_documents: expected rows of at most ",
                                 most_pieces_, " documents, got ", pieces, " in row ",
                                 indices[row]);
  }
}

template <class Token>
void RowFiller::write_tokens(const Plan& plan, const FieldPointers& fields) const {
  const auto kernel = kernels::extract_batch_kernel<Token, int64_t>();
  const Token* arena = static_cast<const Token*>(rows_->store()->data());
  const int64_t block = rows_->block_size();
  const int64_t ignored = wanted_.ignore_index.value_or(kPaddingTarget);
  int64_t* inputs = reinterpret_cast<int64_t*>(fields[0]);
  int64_t* targets = reinterpret_cast<int64_t*>(fields[1]);
  size_t ahead = 0;
  for (size_t row = 0; row < plan.rows(); ++row, inputs += block, targets += block) {
    if (plan.padding(row)) {
      std::fill_n(inputs, block, 0);
      std::fill_n(targets, block, ignored);
      continue;
    }
    // Pieces that lie side by side in the file are one copy; where a document ends, its last
    // target is written over. A copy stops short of a token that may be the arena's last.
    for (size_t p = plan.first[row], end = plan.first[row + 1], at = 0; p < end;) {
      const size_t first = p;
      const int64_t begin = plan.pieces[p].begin;
      int64_t count = plan.pieces[p].count;
      while (++p < end && plan.pieces[p].begin == begin + count) count += plan.pieces[p].count;
      for (; ahead < std::min(p + kPiecesAhead, plan.pieces.size()); ++ahead) {
        prefetch(arena + plan.pieces[ahead].begin, plan.pieces[ahead].count);
      }
      const bool no_next = plan.pieces[p - 1].ends && wanted_.ignore_index;
      const int64_t pairs = count - no_next;
      kernel({arena, &begin, pairs > 0, pairs, inputs + at, targets + at});
      if (no_next) inputs[at + pairs] = static_cast<int64_t>(arena[begin + pairs]);
      if (wanted_.ignore_index) {
        int64_t last = static_cast<int64_t>(at) - 1;
        for (size_t i = first; i < p; ++i) {
          last += plan.pieces[i].count;
          if (plan.pieces[i].ends) targets[last] = ignored;
        }
      }
      at += static_cast<size_t>(count);
    }
  }
}

void RowFiller::write_documents(const Plan& plan, const FieldPointers& fields) const {
  const int64_t block = rows_->block_size();
  const std::vector<Piece> padding{{0, block, true}};
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
    const Piece* piece = empty ? padding.data() : plan.pieces.data() + plan.first[row];
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
  const TokenStore& store = *rows_->store();
  if (cold_.load(std::memory_order_relaxed)) {
    for (const Piece& piece : plan.pieces) store.will_read(piece.begin, piece.count);
  }
  const Clock::time_point start = Clock::now();
  with_token_type(store.type(), [&]<class Token>(std::type_identity<Token>) {
    write_tokens<Token>(plan, fields);
  });
  const auto warm = static_cast<int64_t>(plan.pieces.size()) * kWarmPiece;
  cold_.store(Clock::now() - start > warm, std::memory_order_relaxed);
  if (fields_.size() > 2) write_documents(plan, fields);
  for (const size_t segment : plan.segments) store.verify(segment);
}

}  // namespace aegis
