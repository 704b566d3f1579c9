// What the CPU and CUDA sides of kv_append_ have in common: the checks and the overloads.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/kv_append_.h"
#include "ops/blocks.h"

namespace aegis::ops {

/// Sizes and strides, asked of torch once.
struct KvView {
  explicit KvView(const Tensor& t) : dims(t.dim()) {
    if (dims != 4) return;
    const auto sizes = t.sizes(), strides = t.strides();
    for (int d = 0; d < 4; ++d) {
      size[d] = sizes[d];
      stride[d] = sizes[d] == 1 ? 0 : strides[d];
      if (sizes[d] == 0) empty = true;
    }
  }

  /// Whether no two elements share memory, by a test that holds for every slice and permutation of
  /// a contiguous tensor.
  bool is_its_own() const {
    std::array<int, 4> order{0, 1, 2, 3};
    std::sort(order.begin(), order.end(), [&](int a, int b) { return stride[a] < stride[b]; });
    int64_t reach = 0;  // elements from the first to the last of the dimensions seen
    for (int d : order) {
      if (size[d] == 1) continue;
      if (stride[d] <= reach) return false;
      reach += (size[d] - 1) * stride[d];
    }
    return true;
  }

  Extent extent(const Tensor& t, int64_t item) const {
    const char* begin = static_cast<const char*>(t.const_data_ptr());
    if (empty) return {begin, begin};
    int64_t last = 0;
    for (int d = 0; d < 4; ++d) last += (size[d] - 1) * stride[d];
    return {begin, begin + (last + 1) * item};
  }

  int64_t dims;
  std::array<int64_t, 4> size{};
  std::array<int64_t, 4> stride{};
  bool empty = false;
};

inline void check_kv(const Tensor& t, const KvView& view, const char* name, const char* shape) {
  check<std::invalid_argument>(view.dims == 4, name, ": expected a 4-D tensor ", shape,
                               ", got shape ", shape_of(t));
  check<std::invalid_argument>(view.size[3] == 1 || view.stride[3] == 1 || view.empty, name,
                               ": expected a last dimension of stride 1, got stride ",
                               view.stride[3]);
}

/// Checks keys, or values, against what is new of them.
inline kernels::KvSide check_side(const Tensor& cache, const KvView& to, const Tensor& fresh,
                                  const KvView& from, const char* name, const char* fresh_name) {
  check_kv(cache, to, name, "(rows, heads, slots, size)");
  check_kv(fresh, from, fresh_name, "(batch, heads, tokens, size)");
  check_dtype(fresh, cache.scalar_type(), fresh_name);
  check_same_device(fresh, cache, fresh_name, name);
  check<std::invalid_argument>(from.size[1] == to.size[1] && from.size[3] == to.size[3], fresh_name,
                               ": expected ", to.size[1], " heads of size ", to.size[3], " as in ",
                               name, ", got shape ", shape_of(fresh));
  check<std::invalid_argument>(to.empty || to.is_its_own(), name,
                               ": expected elements that share no memory, got strides ",
                               list_of(cache.strides()));
  const auto item = static_cast<int64_t>(cache.element_size());
  return {static_cast<std::byte*>(cache.mutable_data_ptr()),
          to.stride[0] * item,
          to.stride[1] * item,
          to.stride[2] * item,
          static_cast<const std::byte*>(fresh.const_data_ptr()),
          from.stride[0] * item,
          from.stride[1] * item,
          from.stride[2] * item,
          to.size[3] * item};
}

/// Everything but the values of positions and rows.
inline kernels::KvAppend check_kv_append(const Tensor& keys, const Tensor& values,
                                         const Tensor& new_keys, const Tensor& new_values,
                                         const Tensor& positions, const std::optional<Tensor>& rows,
                                         const std::optional<Tensor>& blocks) {
  const KvView k(keys), v(values), nk(new_keys), nv(new_values);
  kernels::KvAppend job{};
  job.keys = check_side(keys, k, new_keys, nk, "keys", "new_keys");
  job.values = check_side(values, v, new_values, nv, "values", "new_values");
  const auto same = [](const KvView& a, const KvView& b) {
    return std::equal(a.size.begin(), a.size.begin() + 3, b.size.begin());
  };
  check<std::invalid_argument>(same(v, k), "values: expected rows, heads and slots of keys, ",
                               shape_of(keys), ", got shape ", shape_of(values));
  check<std::invalid_argument>(same(nv, nk),
                               "new_values: expected batch, heads and tokens of new_keys, ",
                               shape_of(new_keys), ", got shape ", shape_of(new_values));
  check_same_device(values, keys, "values", "keys");
  if (blocks) {
    check_blocks(*blocks, keys);
    job.blocks = blocks->const_data_ptr<int64_t>();
    job.block_stride = blocks->stride(0);
    job.row_blocks = blocks->size(1);
  }
  job.pages = k.size[0];
  job.cache_rows = blocks ? blocks->size(0) : k.size[0];
  job.heads = k.size[1];
  job.slots = k.size[2];
  job.batch = nk.size[0];
  job.tokens = nk.size[2];
  const auto check_indices = [&](const Tensor& t, const char* name) {
    check_dtype(t, ScalarType::Long, name);
    check_same_device(t, keys, name, "keys");
    check<std::invalid_argument>(t.dim() == 1 && t.size(0) == job.batch && t.is_contiguous(), name,
                                 ": expected a contiguous tensor of shape [", job.batch,
                                 "] (the batch of new_keys), got shape ", shape_of(t),
                                 t.is_contiguous() ? "" : ", not contiguous");
    return t.const_data_ptr<int64_t>();
  };
  job.positions = check_indices(positions, "positions");
  if (rows) {
    job.rows = check_indices(*rows, "rows");
  } else {
    check<std::invalid_argument>(
        job.batch <= job.cache_rows, "new_keys: expected a batch of at most ", job.cache_rows,
        " (the rows of ", blocks ? "blocks" : "keys", "), got ", job.batch);
  }
  check<std::invalid_argument>(job.slots > 0 || job.tokens == 0 || job.batch == 0,
                               "keys: expected at least 1 slot, got none");

  const auto item = static_cast<int64_t>(keys.element_size());
  const auto value_item = static_cast<int64_t>(values.element_size());
  const Extent to_keys = k.extent(keys, item), to_values = v.extent(values, value_item);
  const Extent from_keys = nk.extent(new_keys, item);
  const Extent from_values = nv.extent(new_values, value_item);
  check_disjoint(to_values, to_keys, "values", "keys");
  check_disjoint(to_keys, from_keys, "keys", "new_keys");
  check_disjoint(to_keys, from_values, "keys", "new_values");
  check_disjoint(to_values, from_keys, "values", "new_keys");
  check_disjoint(to_values, from_values, "values", "new_values");
  const auto check_apart = [&](const int64_t* list, const char* name) {
    const auto* begin = reinterpret_cast<const char*>(list);
    const Extent read{begin, begin + job.batch * static_cast<int64_t>(sizeof(int64_t))};
    check_disjoint(to_keys, read, "keys", name);
    check_disjoint(to_values, read, "values", name);
  };
  check_apart(job.positions, "positions");
  if (rows) check_apart(job.rows, "rows");
  if (blocks) {
    const Extent read = extent_of(*blocks, sizeof(int64_t));
    check_disjoint(to_keys, read, "keys", "blocks");
    check_disjoint(to_values, read, "values", "blocks");
  }
  return job;
}

/// Every position, row and page, before anything is written. For CPU memory.
inline void check_places(const kernels::KvAppend& job) {
  const int64_t last = INT64_MAX - job.tokens;
  for (int64_t b = 0; b < job.batch; ++b) {
    const int64_t position = job.positions[b], row = job.rows ? job.rows[b] : b;
    check<std::out_of_range>(0 <= position && position <= last, "positions[", b,
                             "]: expected 0 to ", last, ", got ", position);
    if (job.rows) {
      check<std::out_of_range>(0 <= row && row < job.cache_rows, "rows[", b, "]: expected 0 to ",
                               job.cache_rows - 1, ", got ", row);
      const int64_t* end = job.rows + b;
      check<std::invalid_argument>(std::find(job.rows, end, row) == end, "rows[", b,
                                   "]: expected a row that is not in the list before, got ", row);
    }
    if (!job.blocks || job.tokens == 0) continue;
    const int64_t block = (position + job.tokens - 1) / job.slots;
    check<std::out_of_range>(block < job.row_blocks, "positions[", b, "]: expected room for ",
                             job.tokens, " tokens within ", job.row_blocks, " blocks of ",
                             job.slots, ", got ", position);
    check_pages(job.blocks + row * job.block_stride, row, position, position + job.tokens,
                job.slots, job.pages);
  }
}

// The overloads a device registers. `append(keys, values, new_keys, new_values, positions, rows,
// blocks)` is its own.

template <auto append>
void kv_append(const Tensor& keys, const Tensor& values, const Tensor& new_keys,
               const Tensor& new_values, const Tensor& positions,
               const std::optional<Tensor>& rows) {
  append(keys, values, new_keys, new_values, positions, rows, std::nullopt);
}

template <auto append>
void kv_append_paged(const Tensor& keys, const Tensor& values, const Tensor& new_keys,
                     const Tensor& new_values, const Tensor& positions, const Tensor& blocks,
                     const std::optional<Tensor>& rows) {
  append(keys, values, new_keys, new_values, positions, rows, blocks);
}

}  // namespace aegis::ops
