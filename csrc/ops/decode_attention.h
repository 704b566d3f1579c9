// What the CPU and CUDA sides of decode_attention have in common: the checks and the overloads.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/decode_attention.h"
#include "ops/blocks.h"

namespace aegis::ops {

/// Everything but the values of spans, rows and blocks.
inline void check_decode_attention(const Tensor& query, const Tensor& keys, const Tensor& values,
                                   const Tensor& spans, int64_t window, double softcap,
                                   const std::optional<Tensor>& rows,
                                   const std::optional<Tensor>& blocks) {
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
  if (blocks) check_blocks(*blocks, keys);
  const Tensor& row_source = blocks ? *blocks : keys;
  if (rows) {
    check_dtype(*rows, ScalarType::Long, "rows");
    check<std::invalid_argument>(rows->dim() == 1 && rows->size(0) == query.size(0),
                                 "rows: expected shape [", query.size(0),
                                 "], one for each batch row, got ", shape_of(*rows));
    check_same_device(*rows, query, "rows", "query");
  } else {
    check<std::invalid_argument>(query.size(0) <= row_source.size(0), "query: expected at most ",
                                 row_source.size(0), " batch rows (those of ",
                                 blocks ? "blocks" : "keys", "), got ", query.size(0));
  }
  check<std::invalid_argument>(window >= 0, "window: expected 0 (none) or more, got ", window);
  check<std::invalid_argument>(softcap >= 0, "softcap: expected 0 (none) or more, got ", softcap);
}

/// The pointers live as long as the tensors.
template <class Element>
kernels::DecodeAttention<Element> decode_attention_job(const Tensor& query, const Tensor& keys,
                                                       const Tensor& values, double scale,
                                                       double softcap,
                                                       const std::optional<Tensor>& blocks,
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
          static_cast<float>(softcap),
          blocks ? blocks->const_data_ptr<int64_t>() : nullptr,
          blocks ? blocks->stride(0) : 0};
}

// The overloads a device registers. `attend(query, keys, values, spans, scale, window, softcap,
// rows, blocks)` is its own.

template <auto attend>
Tensor decode_attention(const Tensor& query, const Tensor& keys, const Tensor& values,
                        const Tensor& spans, double scale, int64_t window, double softcap,
                        const std::optional<Tensor>& rows) {
  return attend(query, keys, values, spans, scale, window, softcap, rows, std::nullopt);
}

template <auto attend>
Tensor decode_attention_paged(const Tensor& query, const Tensor& keys, const Tensor& values,
                              const Tensor& spans, double scale, const Tensor& blocks,
                              int64_t window, double softcap, const std::optional<Tensor>& rows) {
  return attend(query, keys, values, spans, scale, window, softcap, rows, blocks);
}

}  // namespace aegis::ops
