// What the CPU and CUDA sides of kv_move_ have in common: the checks.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/kv_move_.h"
#include "ops/kv_append_.h"

namespace aegis::ops {

inline kernels::KvMoveSide move_side(const Tensor& cache, const KvView& view, const char* name) {
  check_kv(cache, view, name, "(rows, heads, slots, size)");
  check<std::invalid_argument>(view.empty || view.is_its_own(), name,
                               ": expected elements that share no memory, got strides ",
                               list_of(cache.strides()));
  const auto item = static_cast<int64_t>(cache.element_size());
  return {static_cast<std::byte*>(cache.mutable_data_ptr()), view.stride[0] * item,
          view.stride[1] * item, view.stride[2] * item, view.size[3] * item};
}

/// Everything but the values of sources, positions and rows.
inline kernels::KvMove check_kv_move(const Tensor& keys, const Tensor& values,
                                     const Tensor& sources, const Tensor& positions,
                                     const std::optional<Tensor>& rows) {
  const KvView k(keys), v(values);
  kernels::KvMove job{};
  job.keys = move_side(keys, k, "keys");
  job.values = move_side(values, v, "values");
  check<std::invalid_argument>(std::equal(v.size.begin(), v.size.begin() + 3, k.size.begin()),
                               "values: expected rows, heads and slots of keys, ", shape_of(keys),
                               ", got shape ", shape_of(values));
  check_same_device(values, keys, "values", "keys");
  job.cache_rows = k.size[0];
  job.heads = k.size[1];
  job.slots = k.size[2];
  const Extent written[] = {k.extent(keys, static_cast<int64_t>(keys.element_size())),
                            v.extent(values, static_cast<int64_t>(values.element_size()))};
  check_disjoint(written[1], written[0], "values", "keys");
  check_dtype(sources, ScalarType::Long, "sources");
  check<std::invalid_argument>(sources.dim() == 2 && sources.is_contiguous(),
                               "sources: expected a contiguous tensor (batch, tokens), got shape ",
                               shape_of(sources),
                               sources.is_contiguous() ? "" : ", not contiguous");
  job.batch = sources.size(0);
  job.tokens = sources.size(1);
  const auto read = [&](const Tensor& t, const char* name) {
    check_dtype(t, ScalarType::Long, name);
    check_same_device(t, keys, name, "keys");
    const auto* begin = static_cast<const char*>(t.const_data_ptr());
    const Extent extent{begin, begin + t.numel() * static_cast<int64_t>(sizeof(int64_t))};
    check_disjoint(written[0], extent, "keys", name);
    check_disjoint(written[1], extent, "values", name);
    return t.const_data_ptr<int64_t>();
  };
  const auto read_batch = [&](const Tensor& t, const char* name) {
    check<std::invalid_argument>(t.dim() == 1 && t.size(0) == job.batch && t.is_contiguous(), name,
                                 ": expected a contiguous tensor of shape [", job.batch,
                                 "] (the batch of sources), got shape ", shape_of(t),
                                 t.is_contiguous() ? "" : ", not contiguous");
    return read(t, name);
  };
  job.sources = read(sources, "sources");
  job.positions = read_batch(positions, "positions");
  if (rows) {
    job.rows = read_batch(*rows, "rows");
  } else {
    check<std::invalid_argument>(job.batch <= job.cache_rows,
                                 "sources: expected a batch of at most ", job.cache_rows,
                                 " (the rows of keys), got ", job.batch);
  }
  return job;
}

/// Every source, position and row, before anything is written. For CPU memory.
inline void check_moves(const kernels::KvMove& job) {
  // Sources lie less than `slots` behind a position, and a number follows on each.
  const int64_t last = INT64_MAX - std::max(job.tokens, job.slots);
  for (int64_t b = 0; b < job.batch; ++b) {
    const int64_t position = job.positions[b];
    check<std::out_of_range>(0 <= position && position <= last, "positions[", b,
                             "]: expected 0 to ", last, ", got ", position);
    if (job.rows) {
      const int64_t row = job.rows[b];
      check<std::out_of_range>(0 <= row && row < job.cache_rows, "rows[", b, "]: expected 0 to ",
                               job.cache_rows - 1, ", got ", row);
      const int64_t* end = job.rows + b;
      check<std::invalid_argument>(std::find(job.rows, end, row) == end, "rows[", b,
                                   "]: expected a row that is not in the list before, got ", row);
    }
    int64_t before = -1;
    for (int64_t t = 0; t < job.tokens; ++t) {
      const int64_t source = job.sources[b * job.tokens + t];
      if (source == -1) continue;
      const int64_t least = std::max(before + 1, position + t);
      check<std::out_of_range>(least <= source && source - position < job.slots, "sources[", b,
                               "][", t, "]: expected -1, or at least ", least, " and less than ",
                               job.slots, " (the slots of keys) more than ", position, ", got ",
                               source);
      before = source;
    }
  }
}

}  // namespace aegis::ops
