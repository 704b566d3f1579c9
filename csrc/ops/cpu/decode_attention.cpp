#include "kernels/decode_attention.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "ops/abi.h"

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

void check_operands(const Tensor& query, const Tensor& keys, const Tensor& values,
                    const Tensor& spans, const std::optional<Tensor>& rows) {
  const ScalarType dtype = query.scalar_type();
  with_float_type(dtype, "query", [](auto) {});
  check<std::invalid_argument>(query.dim() == 4 && query.size(2) == 1,
                               "query: expected shape (batch, heads, 1, head size), got ",
                               shape_of(query));
  const int64_t head_size = query.size(3);
  const auto check_buffer = [&](const Tensor& t, const char* name) {
    check_dtype(t, dtype, name);
    check<std::invalid_argument>(t.dim() == 4 && t.size(3) == head_size, name,
                                 ": expected shape (rows, heads, slots, ", head_size, "), got ",
                                 shape_of(t));
    check<std::invalid_argument>(t.size(3) <= 1 || t.stride(3) == 1, name,
                                 ": expected adjacent elements in the last dimension (stride 1), "
                                 "got stride ",
                                 t.stride(3));
    check_same_device(t, query, name, "query");
  };
  check<std::invalid_argument>(
      head_size <= 1 || query.stride(3) == 1,
      "query: expected adjacent elements in the last dimension (stride 1), got stride ",
      query.stride(3));
  check_buffer(keys, "keys");
  check_buffer(values, "values");
  for (int64_t d = 0; d < 3; ++d) {
    check<std::invalid_argument>(values.size(d) == keys.size(d),
                                 "values: expected the shape of keys ", shape_of(keys), ", got ",
                                 shape_of(values));
  }
  const int64_t heads = query.size(1), key_heads = keys.size(1);
  check<std::invalid_argument>(key_heads > 0 ? heads % key_heads == 0 : heads == 0,
                               "query: expected a multiple of ", key_heads,
                               " heads (those of keys), got ", heads);
  check_dtype(spans, ScalarType::Long, "spans");
  check<std::invalid_argument>(spans.numel() == 2 * query.size(0) &&
                                   (spans.dim() == 0 || spans.size(-1) == 2 || spans.numel() == 0),
                               "spans: expected shape (", query.size(0),
                               ", 2), a start and an end for each batch row, got ",
                               shape_of(spans));
  check_same_device(spans, query, "spans", "query");
  if (rows) {
    check_dtype(*rows, ScalarType::Long, "rows");
    check<std::invalid_argument>(rows->dim() == 1 && rows->size(0) == query.size(0),
                                 "rows: expected shape [", query.size(0),
                                 "], one for each batch row, got ", shape_of(*rows));
    check_same_device(*rows, query, "rows", "query");
  } else {
    check<std::invalid_argument>(query.size(0) <= keys.size(0), "query: expected at most ",
                                 keys.size(0), " batch rows (those of keys), got ", query.size(0));
  }
}

Tensor packed(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

Ranges check_ranges(const Tensor& keys, const Tensor& spans, int64_t window,
                    const std::optional<Tensor>& rows, int64_t batch) {
  check<std::invalid_argument>(window >= 0, "window: expected 0 (none) or more, got ", window);
  const Tensor packed_spans = packed(spans), packed_rows = rows ? packed(*rows) : packed_spans;
  const auto* span = static_cast<const int64_t*>(packed_spans.const_data_ptr());
  const auto* row = static_cast<const int64_t*>(packed_rows.const_data_ptr());
  const int64_t slots = keys.size(2);
  Ranges ranges;
  ranges.rows.reserve(static_cast<size_t>(batch));
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t start = span[2 * i], end = span[2 * i + 1];
    check<std::invalid_argument>(0 <= start && start <= end, "spans[", i,
                                 "]: expected 0 <= start <= end, got ", start, " and ", end);
    const int64_t begin = window > 0 ? std::max(start, end - window) : start;
    check<std::invalid_argument>(end - begin <= slots, "spans[", i, "]: expected at most ", slots,
                                 " positions (the slots of keys), got ", end - begin, " (from ",
                                 begin, " to ", end, ")");
    const int64_t cache_row = rows ? row[i] : i;
    check<std::out_of_range>(0 <= cache_row && cache_row < keys.size(0), "rows[", i,
                             "]: expected an index in [0, ", keys.size(0), "), got ", cache_row);
    const int64_t pieces = (end - begin + kernels::kPiecePositions - 1) / kernels::kPiecePositions;
    ranges.rows.push_back({cache_row, begin, end, ranges.pieces, pieces});
    ranges.pieces += pieces * keys.size(1);
    ranges.positions += end - begin;
  }
  return ranges;
}

template <class Element>
kernels::DecodeAttention<Element> job_of(const Tensor& query, const Tensor& keys,
                                         const Tensor& values, double scale, double softcap,
                                         const Tensor& out) {
  return {static_cast<const Element*>(query.const_data_ptr()),
          query.stride(0),
          query.stride(1),
          static_cast<const Element*>(keys.const_data_ptr()),
          keys.stride(0),
          keys.stride(1),
          keys.stride(2),
          static_cast<const Element*>(values.const_data_ptr()),
          values.stride(0),
          values.stride(1),
          values.stride(2),
          static_cast<Element*>(out.mutable_data_ptr()),
          query.size(1) / std::max(keys.size(1), int64_t{1}),
          keys.size(1),
          keys.size(2),
          query.size(3),
          static_cast<float>(scale),
          static_cast<float>(softcap)};
}

/// Pieces side by side; then, for each row and key head, its pieces put together. Where a range is
/// one piece, the thread that has it does both.
template <class Element>
void run(const kernels::DecodeAttention<Element>& job, const Ranges& ranges) {
  const auto kernel = kernels::decode_attention_kernel<Element>();
  const int64_t part_floats = job.group * kernels::part_size(job.head_size);
  const std::unique_ptr<float[]> parts(new float[static_cast<size_t>(ranges.pieces * part_floats)]);
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
    const int64_t bytes = 2 * ranges.positions * job.key_heads * job.head_size *
                          static_cast<int64_t>(sizeof(Element)) / ranges.pieces;
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

Tensor decode_attention(const Tensor& query, const Tensor& keys, const Tensor& values,
                        const Tensor& spans, double scale, int64_t window, double softcap,
                        const std::optional<Tensor>& rows) {
  check_operands(query, keys, values, spans, rows);
  check<std::invalid_argument>(softcap >= 0, "softcap: expected 0 (none) or more, got ", softcap);
  const int64_t batch = query.size(0);
  const Ranges ranges = check_ranges(keys, spans, window, rows, batch);
  Tensor out = torch::stable::new_empty(query, {batch, 1, query.size(1), query.size(3)});
  with_float_type(query.scalar_type(), "query", [&]<class Element>(std::type_identity<Element>) {
    run(job_of<Element>(query, keys, values, scale, softcap, out), ranges);
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("decode_attention", TORCH_BOX(&decode_attention));
}

}  // namespace aegis::ops
