// What the CPU and CUDA sides of float8_quantize have in common: the checks.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/float8_quantize.h"
#include "ops/abi.h"

namespace aegis::ops {

/// How elements of a row share scales.
struct Float8Groups {
  int64_t size;   ///< elements in a group
  int64_t count;  ///< groups in a row

  static Float8Groups rows(int64_t k) { return {std::max(k, int64_t{1}), 1}; }
  static Float8Groups blocks(int64_t k) {
    return {kernels::kFloat8Block, (k + kernels::kFloat8Block - 1) / kernels::kFloat8Block};
  }
};

/// The rows of a tensor: all sizes but the last, multiplied.
inline int64_t rows_of(const Tensor& x) {
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return rows;
}

/// The shape of `x` with another last size.
inline std::vector<int64_t> shape_with_last(const Tensor& x, int64_t last) {
  std::vector<int64_t> shape;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) shape.push_back(x.size(d));
  shape.push_back(last);
  return shape;
}

inline void check_float8_input(const Tensor& x) {
  with_float_type(x.scalar_type(), "x", [](auto) {});
  check<std::invalid_argument>(x.dim() > 0, "x: expected at least 1 dimension, got a 0-D tensor");
}

/// Rows of numbers and where they go.
struct Float8Quantized {
  Tensor x;  ///< contiguous
  Tensor values;
  Tensor scales;
  int64_t rows;
  Float8Groups groups;

  template <class Element>
  kernels::Float8Quantize<Element> job() const {
    return {static_cast<const Element*>(x.const_data_ptr()),
            static_cast<uint8_t*>(values.mutable_data_ptr()),
            static_cast<float*>(scales.mutable_data_ptr()),
            rows,
            x.size(-1),
            groups.size,
            groups.count};
  }
};

/// Memory for the result, not yet filled.
inline Float8Quantized float8_quantized(const Tensor& x, Float8Groups groups) {
  const Tensor packed = as_contiguous(x);
  return {packed, torch::stable::new_empty(packed, packed.sizes(), ScalarType::Float8_e4m3fn),
          torch::stable::new_empty(packed, shape_with_last(x, groups.count), ScalarType::Float),
          rows_of(x), groups};
}

inline Float8Groups check_float8_quantize(const Tensor& x, int64_t block) {
  check_float8_input(x);
  check<std::invalid_argument>(block == 0 || block == kernels::kFloat8Block,
                               "block: expected 0 (a scale for each row) or ",
                               kernels::kFloat8Block, ", got ", block);
  const int64_t k = x.size(-1);
  return block == 0 ? Float8Groups::rows(k) : Float8Groups::blocks(k);
}

}  // namespace aegis::ops
