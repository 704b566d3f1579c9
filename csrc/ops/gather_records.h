// What the CPU and CUDA sides of gather_records and gather_records_scaled have in common: the
// checks.
#pragma once

#include <vector>

#include "ops/abi.h"

namespace aegis::ops {

/// A record array and the rows asked for, checked as far as shapes and types go; the indices'
/// values are not looked at.
struct GatherShape {
  int64_t rows;        ///< in the source
  int64_t row_bytes;   ///< of the source
  int64_t row_stride;  ///< in bytes
  int64_t batch;
  std::vector<int64_t> out;  ///< (batch, *row)
};

/// Whether each row of `t` (everything but dimension 0) is contiguous; rows may lie apart.
inline bool rows_contiguous(const Tensor& t) {
  int64_t step = 1;
  for (int64_t d = t.dim() - 1; d > 0; --d) {
    if (t.size(d) != 1 && t.stride(d) != step) return false;
    step *= t.size(d);
  }
  return true;
}

inline GatherShape check_gather(const Tensor& source, const Tensor& indices) {
  check<std::invalid_argument>(source.dim() >= 1,
                               "source: expected at least 1 dimension, got a 0-D tensor");
  check_dtype(indices, ScalarType::Long, "indices");
  check_vector(indices, "indices");
  check_same_device(indices, source, "indices", "source");
  GatherShape shape{source.size(0),
                    static_cast<int64_t>(source.element_size()),
                    0,
                    indices.numel(),
                    {indices.numel()}};
  shape.row_stride = source.stride(0) * shape.row_bytes;
  for (int64_t d = 1; d < source.dim(); ++d) {
    shape.row_bytes *= source.size(d);
    shape.out.push_back(source.size(d));
  }
  check<std::invalid_argument>(shape.row_bytes == 0 || rows_contiguous(source),
                               "source: expected contiguous rows, got shape ", shape_of(source),
                               " with other strides");
  return shape;
}

/// Every index, before anything is written. For CPU memory.
inline void check_rows(const Tensor& indices, const GatherShape& shape) {
  const int64_t* index = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < shape.batch; ++i) {
    check<std::out_of_range>(0 <= index[i] && index[i] < shape.rows, "indices[", i,
                             "]: expected 0 to ", shape.rows - 1,
                             shape.rows == 0 ? " (source has no rows), got " : ", got ", index[i]);
  }
}

/// Checks what the .out overloads write; its dtype is the caller's affair.
inline void check_gather_out(const GatherShape& shape, const Tensor& source, const Tensor& indices,
                             const Tensor& out) {
  bool fits = out.is_contiguous() && out.dim() == static_cast<int64_t>(shape.out.size());
  for (int64_t d = 0; fits && d < out.dim(); ++d) fits = out.size(d) == shape.out[d];
  check<std::invalid_argument>(fits, "out: expected a contiguous tensor of shape ",
                               list_of(shape.out), ", got shape ", shape_of(out),
                               out.is_contiguous() ? "" : ", not contiguous");
  check_same_device(out, source, "out", "source");
  if (out.numel() == 0) return;
  const Extent written = extent_of(out, out.element_size());
  check_disjoint(written, extent_of(source, source.element_size()), "out", "source");
  check_disjoint(written, extent_of(indices, sizeof(int64_t)), "out", "indices");
}

}  // namespace aegis::ops
