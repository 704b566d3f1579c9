#include "kernels/pack_ternary.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "ops/ternary.h"

namespace aegis::ops {
namespace {

/// Weights that are worth waking a thread for.
constexpr int64_t kThreadWeights = 64 << 10;

template <class Element>
std::vector<float> scales_of(const kernels::PackTernary<Element>& job, int64_t n, bool per_tensor) {
  std::vector<kernels::Magnitudes> rows(static_cast<size_t>(n));
  torch::stable::parallel_for(0, n, kThreadWeights / std::max(job.k, int64_t{1}) + 1,
                              [&](int64_t begin, int64_t end) {
                                for (int64_t row = begin; row < end; ++row) {
                                  rows[row] = kernels::magnitudes_of(job, row);
                                }
                              });
  for (int64_t row = 0; row < n; ++row) {
    check<std::invalid_argument>(rows[row].finite,
                                 "weight: expected finite values, got others in row ", row);
  }
  std::vector<float> scales;
  if (per_tensor) {
    kernels::Magnitudes all{0, INFINITY, 0, true};
    for (const auto& row : rows) all = kernels::merged(all, row);
    scales.push_back(kernels::ternary_scale(all, n * job.k));
  } else {
    for (const auto& row : rows) scales.push_back(kernels::ternary_scale(row, job.k));
  }
  return scales;
}

/// The scales the caller gave, checked.
std::vector<float> given_scales(const Tensor& scale, const Tensor& weight, bool per_tensor) {
  check_scale(scale, weight.size(0), weight, "weight");
  check<std::invalid_argument>(!per_tensor || scale.numel() == 1,
                               "scale: expected 1 for the whole tensor, got ", scale.numel());
  const Tensor values = as_contiguous(scale);
  const auto* first = static_cast<const float*>(values.const_data_ptr());
  std::vector<float> scales(first, first + values.numel());
  for (float one : scales) {
    check<std::invalid_argument>(std::isfinite(one) && one > 0,
                                 "scale: expected finite values above 0, got ", one);
  }
  return scales;
}

std::tuple<Tensor, Tensor> pack_ternary(const Tensor& weight, const std::optional<Tensor>& scale,
                                        bool per_tensor) {
  const ScalarType dtype = weight.scalar_type();
  with_float_type(dtype, "weight", [](auto) {});
  check<std::invalid_argument>(weight.dim() == 2, "weight: expected a 2-D tensor, got shape ",
                               shape_of(weight));
  const Tensor rows = weight.size(1) <= 1 || weight.stride(1) == 1 ? weight : as_contiguous(weight);
  const int64_t n = weight.size(0), k = weight.size(1), words = kernels::trit_words(k);
  return with_float_type(dtype, "weight", [&]<class Element>(std::type_identity<Element>) {
    const kernels::PackTernary<Element> job{static_cast<const Element*>(rows.const_data_ptr()),
                                            rows.stride(0), k};
    const std::vector<float> scales =
        scale ? given_scales(*scale, weight, per_tensor) : scales_of(job, n, per_tensor);
    if (scale) scales_of(job, n, per_tensor);  // for its check of the weights
    Tensor packed = torch::stable::new_empty(weight, {n, words}, ScalarType::UInt32);
    Tensor out =
        torch::stable::new_empty(weight, {static_cast<int64_t>(scales.size())}, ScalarType::Float);
    std::copy(scales.begin(), scales.end(), static_cast<float*>(out.mutable_data_ptr()));
    auto* codes = static_cast<uint32_t*>(packed.mutable_data_ptr());
    torch::stable::parallel_for(
        0, n, kThreadWeights / std::max(k, int64_t{1}) + 1, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            kernels::pack_row(job, row, scales[scales.size() == 1 ? 0 : row], codes + row * words);
          }
        });
    return std::tuple(packed, out);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) { m.impl("pack_ternary", TORCH_BOX(&pack_ternary)); }

}  // namespace aegis::ops
