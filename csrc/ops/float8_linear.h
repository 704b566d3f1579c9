// What the CPU and CUDA sides of float8_linear have in common: the checks.
#pragma once

#include <optional>
#include <vector>

#include "kernels/float8_linear.h"
#include "ops/float8_quantize.h"

namespace aegis::ops {

/// The arguments of float8_linear, checked.
struct Float8Arguments {
  Tensor weight;
  Tensor weight_scale;
  std::optional<Tensor> bias;  ///< contiguous
  Float8Groups groups;
  kernels::Float8Result type;

  /// The job for `rows` rows of x at `x`, whose results go to `out`.
  kernels::Float8Linear job(const void* x, const float* x_scale, int64_t rows, void* out) const {
    return {x,
            x_scale,
            static_cast<const uint8_t*>(weight.const_data_ptr()),
            weight.stride(0),
            weight_scale.const_data_ptr<float>(),
            bias ? bias->const_data_ptr() : nullptr,
            out,
            type,
            rows,
            weight.size(1),
            weight.size(0),
            groups.size,
            groups.count};
  }
};

inline kernels::Float8Result float8_result(ScalarType dtype) {
  if (dtype == ScalarType::Half) return kernels::Float8Result::float16;
  if (dtype == ScalarType::BFloat16) return kernels::Float8Result::bfloat16;
  return kernels::Float8Result::float32;
}

inline Float8Arguments check_float8_linear(const Tensor& x, const Tensor& weight,
                                           const Tensor& weight_scale,
                                           const std::optional<Tensor>& bias) {
  check_float8_input(x);
  check_dtype(weight, ScalarType::Float8_e4m3fn, "weight");
  check<std::invalid_argument>(weight.dim() == 2, "weight: expected a 2-D tensor, got shape ",
                               shape_of(weight));
  const int64_t n = weight.size(0), k = weight.size(1);
  check<std::invalid_argument>(k == x.size(-1), "weight: expected ", x.size(-1),
                               " columns (the last size of x), got shape ", shape_of(weight));
  check<std::invalid_argument>(k <= 1 || weight.stride(1) == 1,
                               "weight: expected rows of adjacent elements (stride 1), got stride ",
                               weight.stride(1));
  check_same_device(weight, x, "weight", "x");
  check_dtype(weight_scale, ScalarType::Float, "weight_scale");
  const Float8Groups rows = Float8Groups::rows(k), blocks = Float8Groups::blocks(k);
  const bool fits = weight_scale.dim() == 2 && weight_scale.size(0) == n &&
                    (weight_scale.size(1) == 1 || weight_scale.size(1) == blocks.count) &&
                    weight_scale.is_contiguous();
  check<std::invalid_argument>(fits, "weight_scale: expected a contiguous tensor of shape [", n,
                               ", 1] or [", n, ", ", blocks.count,
                               "] (a scale for each row, or for each ", kernels::kFloat8Block,
                               " elements of it), got shape ", shape_of(weight_scale),
                               weight_scale.is_contiguous() ? "" : ", not contiguous");
  check_same_device(weight_scale, x, "weight_scale", "x");
  if (bias) {
    check_dtype(*bias, x.scalar_type(), "bias");
    check<std::invalid_argument>(bias->dim() == 1 && bias->size(0) == n, "bias: expected shape [",
                                 n, "] (the rows of weight), got ", shape_of(*bias));
    check_same_device(*bias, x, "bias", "x");
  }
  return {weight, weight_scale, bias ? std::optional(as_contiguous(*bias)) : bias,
          weight_scale.size(1) == 1 ? rows : blocks, float8_result(x.scalar_type())};
}

}  // namespace aegis::ops
