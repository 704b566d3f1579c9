// What the CPU and CUDA sides of skinny_linear have in common: the checks and the overloads.
#pragma once

#include <optional>
#include <vector>

#include "kernels/skinny_linear.h"
#include "ops/abi.h"

namespace aegis::ops {

/// The arguments of skinny_linear, checked, and as kernels read them.
struct SkinnyArguments {
  Tensor x;  ///< contiguous
  Tensor weight;
  std::optional<Tensor> bias;  ///< contiguous
  std::vector<int64_t> shape;  ///< of the result
  int64_t rows;

  /// The job that fills `out`; the pointers live as long as the tensors.
  template <class Element>
  kernels::SkinnyLinear<Element> job(const Tensor& out) const {
    return {static_cast<const Element*>(x.const_data_ptr()),
            static_cast<const Element*>(weight.const_data_ptr()),
            weight.stride(0),
            bias ? static_cast<const Element*>(bias->const_data_ptr()) : nullptr,
            static_cast<Element*>(out.mutable_data_ptr()),
            rows,
            weight.size(1),
            weight.size(0)};
  }
};

inline SkinnyArguments check_skinny(const Tensor& x, const Tensor& weight,
                                    const std::optional<Tensor>& bias) {
  const ScalarType dtype = x.scalar_type();
  with_float_type(dtype, "x", [](auto) {});
  check<std::invalid_argument>(x.dim() > 0, "x: expected at least 1 dimension, got a 0-D tensor");
  check_dtype(weight, dtype, "weight");
  check<std::invalid_argument>(weight.dim() == 2, "weight: expected a 2-D tensor, got shape ",
                               shape_of(weight));
  check<std::invalid_argument>(weight.size(1) == x.size(-1), "weight: expected ", x.size(-1),
                               " columns (the last size of x), got shape ", shape_of(weight));
  check<std::invalid_argument>(weight.size(1) <= 1 || weight.stride(1) == 1,
                               "weight: expected rows of adjacent elements (stride 1), got stride ",
                               weight.stride(1));
  check_same_device(weight, x, "weight", "x");
  if (bias) {
    check_dtype(*bias, dtype, "bias");
    check<std::invalid_argument>(bias->dim() == 1 && bias->size(0) == weight.size(0),
                                 "bias: expected shape [", weight.size(0),
                                 "] (the rows of weight), got ", shape_of(*bias));
    check_same_device(*bias, x, "bias", "x");
  }
  int64_t rows = 1;
  std::vector<int64_t> shape;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) {
    shape.push_back(x.size(d));
    rows *= x.size(d);
  }
  shape.push_back(weight.size(0));
  check<std::invalid_argument>(rows <= kernels::kSkinnyRows, "x: expected at most ",
                               kernels::kSkinnyRows, " rows (all sizes but the last), got ", rows,
                               " (shape ", shape_of(x), ")");
  return {as_contiguous(x), weight, bias ? std::optional(as_contiguous(*bias)) : bias, shape, rows};
}

/// Checks the tensor that skinny_linear.out writes against `x` and `bias` as the caller gave them.
inline void check_skinny_out(const SkinnyArguments& arguments, const Tensor& x,
                             const std::optional<Tensor>& bias, const Tensor& out) {
  check_dtype(out, x.scalar_type(), "out");
  bool fits = out.dim() == x.dim() && out.is_contiguous();
  for (int64_t d = 0; fits && d < out.dim(); ++d) fits = out.size(d) == arguments.shape[d];
  check<std::invalid_argument>(fits, "out: expected a contiguous tensor of shape ",
                               list_of(arguments.shape), ", got shape ", shape_of(out),
                               out.is_contiguous() ? "" : ", not contiguous");
  check_same_device(out, x, "out", "x");
  const size_t bytes = out.element_size();
  const Extent written = extent_of(out, bytes);
  check_disjoint(written, extent_of(x, bytes), "out", "x");
  check_disjoint(written, extent_of(arguments.weight, bytes), "out", "weight");
  if (bias) check_disjoint(written, extent_of(*bias, bytes), "out", "bias");
}

// The overloads a device registers. `run(arguments, out)` is its own and fills `out`.

template <auto run>
Tensor skinny_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const SkinnyArguments arguments = check_skinny(x, weight, bias);
  Tensor out = torch::stable::new_empty(x, arguments.shape);
  run(arguments, out);
  return out;
}

template <auto run>
void skinny_linear_out(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                       const Tensor& out) {
  const SkinnyArguments arguments = check_skinny(x, weight, bias);
  check_skinny_out(arguments, x, bias, out);
  run(arguments, out);
}

}  // namespace aegis::ops
