// What the CPU and CUDA sides of ternary_linear have in common: the checks.
#pragma once

#include <optional>
#include <vector>

#include "kernels/ternary_linear.h"
#include "ops/ternary.h"

namespace aegis::ops {

/// The arguments of ternary_linear, checked, and as kernels read them.
struct TernaryArguments {
  Tensor x;  ///< contiguous
  Tensor packed;
  Tensor scale;                ///< contiguous
  std::optional<Tensor> bias;  ///< contiguous
  std::vector<int64_t> shape;  ///< of the result
  int64_t rows;

  /// The job that fills `out`, without the memory for what is prepared; the pointers live as long
  /// as the tensors.
  template <class Element>
  kernels::TernaryLinear<Element> job(const Tensor& out) const {
    kernels::TernaryLinear<Element> job{};
    job.x = static_cast<const Element*>(x.const_data_ptr());
    job.packed = static_cast<const uint32_t*>(packed.const_data_ptr());
    job.scale = static_cast<const float*>(scale.const_data_ptr());
    job.scale_stride = scale.numel() == 1 ? 0 : 1;
    job.bias = bias ? static_cast<const Element*>(bias->const_data_ptr()) : nullptr;
    job.out = static_cast<Element*>(out.mutable_data_ptr());
    job.rows = rows;
    job.k = x.size(-1);
    job.n = packed.size(0);
    return job;
  }
};

inline TernaryArguments check_ternary(const Tensor& x, const Tensor& packed, const Tensor& scale,
                                      const std::optional<Tensor>& bias) {
  const ScalarType dtype = x.scalar_type();
  with_float_type(dtype, "x", [](auto) {});
  check<std::invalid_argument>(x.dim() > 0, "x: expected at least 1 dimension, got a 0-D tensor");
  const int64_t k = x.size(-1);
  check<std::invalid_argument>(k <= kernels::kTernaryMaxK, "x: expected at most ",
                               kernels::kTernaryMaxK, " elements in a row, got ", k);
  check_packed(packed, k);
  check_same_device(packed, x, "packed", "x");
  const int64_t n = packed.size(0);
  check_scale(scale, n, x, "x");
  if (bias) {
    check_dtype(*bias, dtype, "bias");
    check<std::invalid_argument>(bias->dim() == 1 && bias->size(0) == n, "bias: expected shape [",
                                 n, "] (the rows of packed), got ", shape_of(*bias));
    check_same_device(*bias, x, "bias", "x");
  }
  int64_t rows = 1;
  std::vector<int64_t> shape;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) {
    shape.push_back(x.size(d));
    rows *= x.size(d);
  }
  shape.push_back(n);
  return {as_contiguous(x),
          packed,
          as_contiguous(scale),
          bias ? std::optional(as_contiguous(*bias)) : bias,
          shape,
          rows};
}

}  // namespace aegis::ops
