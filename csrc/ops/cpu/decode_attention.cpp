#include "ops/decode_attention.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <vector>

namespace aegis::ops {
namespace {

using kernels::AttentionPiece;

/// Bytes of keys and values that are worth waking a thread for.
constexpr int64_t kThreadBytes = 128 << 10;

/// The positions one batch row attends to, and the pieces they are cut into: as many for each key
/// head, numbered from `first`.
struct Range {
  int64_t cache_row, begin, end, first, pieces;

  /// Pieces differ by at most one position.
  int64_t cut(int64_t piece) const { return begin + (end - begin) * piece / pieces; }
};

struct Ranges {
  std::vector<Range> rows;
  int64_t pieces = 0;     ///< of all rows and key heads
  int64_t positions = 0;  ///< of all rows
};

Ranges check_ranges(const Tensor& keys, const Tensor& spans, int64_t window,
                    const std::optional<Tensor>& rows, const std::optional<Tensor>& blocks,
                    int64_t batch) {
  const Tensor packed_spans = as_contiguous(spans),
               packed_rows = rows ? as_contiguous(*rows) : packed_spans;
  const auto* span = static_cast<const int64_t*>(packed_spans.const_data_ptr());
  const auto* row = static_cast<const int64_t*>(packed_rows.const_data_ptr());
  const int64_t slots = keys.size(2), cache_rows = blocks ? blocks->size(0) : keys.size(0);
  Ranges ranges;
  ranges.rows.reserve(static_cast<size_t>(batch));
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t start = span[2 * i], end = span[2 * i + 1];
    check<std::invalid_argument>(0 <= start && start <= end, "spans[", i,
                                 "]: expected 0 <= start <= end, got ", start, " and ", end);
    const int64_t begin = window > 0 ? std::max(start, end - window) : start;
    const int64_t cache_row = rows ? row[i] : i;
    check<std::out_of_range>(0 <= cache_row && cache_row < cache_rows, "rows[", i,
                             "]: expected an index in [0, ", cache_rows, "), got ", cache_row);
    if (blocks) {
      // Divided, since no product of sizes may overflow.
      check<std::invalid_argument>(end == 0 || (end - 1) / slots < blocks->size(1), "spans[", i,
                                   "]: expected an end within ", blocks->size(1), " blocks of ",
                                   slots, ", got ", end);
    } else {
      check<std::invalid_argument>(end - begin <= slots, "spans[", i, "]: expected at most ", slots,
                                   " positions (the slots of keys), got ", end - begin, " (from ",
                                   begin, " to ", end, ")");
    }
    check<std::invalid_argument>(end - begin <= kernels::kMostPositions, "spans[", i,
                                 "]: expected at most ", kernels::kMostPositions,
                                 " positions, got ", end - begin);
    if (blocks) {
      check_pages(blocks->const_data_ptr<int64_t>() + cache_row * blocks->stride(0), cache_row,
                  begin, end, slots, keys.size(0));
    }
    const int64_t pieces = (end - begin + kernels::kPiecePositions - 1) / kernels::kPiecePositions;
    ranges.rows.push_back({cache_row, begin, end, ranges.pieces, pieces});
    ranges.pieces += pieces * keys.size(1);
    ranges.positions += end - begin;
  }
  return ranges;
}

/// Pieces side by side; then, for each row and key head, its pieces put together. Where a range is
/// one piece, the thread that has it does both.
template <class Element>
void run(const kernels::DecodeAttention<Element>& job, const Ranges& ranges) {
  const auto kernel = kernels::decode_attention_kernel<Element>();
  const int64_t part_floats = job.group * kernels::part_size(job.head_size);
  int64_t floats;
  if (__builtin_mul_overflow(ranges.pieces, part_floats, &floats)) throw std::bad_alloc();
  const std::unique_ptr<float[]> parts(new float[static_cast<size_t>(floats)]);
  const auto attend = [&](int64_t begin, int64_t end) {
    auto row = std::upper_bound(ranges.rows.begin(), ranges.rows.end(), begin,
                                [](int64_t piece, const Range& r) { return piece < r.first; });
    --row;
    for (int64_t piece = begin; piece < end; ++piece) {
      while (piece - row->first >= row->pieces * job.key_heads) ++row;
      const int64_t head = (piece - row->first) / row->pieces;
      const int64_t part = (piece - row->first) % row->pieces;
      const int64_t batch_row = row - ranges.rows.begin();
      float* memory = parts.get() + piece * part_floats;
      kernel.attend(job, {batch_row, row->cache_row, head, row->cut(part), row->cut(part + 1)},
                    memory);
      if (row->pieces == 1) kernel.combine(job, batch_row, head, memory, 1);
    }
  };
  if (ranges.pieces > 0) {
    const int64_t positions = ranges.positions * job.key_heads / ranges.pieces;
    const int64_t bytes = 2 * positions * job.head_size * static_cast<int64_t>(sizeof(Element));
    torch::stable::parallel_for(0, ranges.pieces, kThreadBytes / std::max(bytes, int64_t{1}) + 1,
                                attend);
  }
  for (size_t i = 0; i < ranges.rows.size(); ++i) {
    const Range& row = ranges.rows[i];
    for (int64_t head = 0; row.pieces != 1 && head < job.key_heads; ++head) {
      kernel.combine(job, static_cast<int64_t>(i), head,
                     parts.get() + (row.first + head * row.pieces) * part_floats, row.pieces);
    }
  }
}

Tensor attend(const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& spans,
              double scale, int64_t window, double softcap, const std::optional<Tensor>& rows,
              const std::optional<Tensor>& blocks) {
  check_decode_attention(query, keys, values, spans, window, softcap, rows, blocks);
  const int64_t batch = query.size(0);
  const Ranges ranges = check_ranges(keys, spans, window, rows, blocks, batch);
  Tensor out = torch::stable::new_empty(query, {batch, 1, query.size(1), query.size(3)});
  with_float_type(query.scalar_type(), "query", [&]<class Element>(std::type_identity<Element>) {
    run(decode_attention_job<Element>(query, keys, values, scale, softcap, blocks, out), ranges);
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("decode_attention", TORCH_BOX(&decode_attention<attend>));
  m.impl("decode_attention.paged", TORCH_BOX(&decode_attention_paged<attend>));
}

}  // namespace aegis::ops
