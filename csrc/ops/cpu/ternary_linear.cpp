#include "ops/ternary_linear.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>

namespace aegis::ops {
namespace {

/// Bytes of packed weights that are worth waking a thread for, and elements of x.
constexpr int64_t kThreadBytes = 32 << 10, kThreadElements = 64 << 10;

Tensor ternary_linear(const Tensor& x, const Tensor& packed, const Tensor& scale,
                      const std::optional<Tensor>& bias, bool exact) {
  const TernaryArguments arguments = check_ternary(x, packed, scale, bias);
  check<std::invalid_argument>(
      kernels::all_finite(static_cast<const float*>(arguments.scale.const_data_ptr()),
                          arguments.scale.numel()),
      "scale: expected finite values, got others");
  Tensor out = torch::stable::new_empty(x, arguments.shape);
  if (out.numel() == 0) return out;
  const int64_t rows = arguments.rows, k = x.size(-1), n = packed.size(0);
  const int64_t padded = kernels::ternary_padded(k);
  // Not tensors: with few rows, allocating those costs more than the layer.
  const auto prepared = [&](auto type, bool wanted, int64_t count) {
    return std::make_unique_for_overwrite<typename decltype(type)::type[]>(wanted ? count : 0);
  };
  const auto values = prepared(std::type_identity<int8_t>{}, !exact, rows * padded);
  const auto floats = prepared(std::type_identity<float>{}, exact, rows * padded);
  const auto scales = prepared(std::type_identity<float>{}, !exact, rows);
  const auto sums = prepared(std::type_identity<int32_t>{}, !exact, rows);
  std::atomic<bool> valid = true;
  with_float_type(x.scalar_type(), "x", [&]<class Element>(std::type_identity<Element>) {
    auto job = arguments.job<Element>(out);
    job.values = values.get();
    job.floats = floats.get();
    job.scales = scales.get();
    job.sums = sums.get();
    const auto kernel = kernels::ternary_kernels<Element>(exact);
    torch::stable::parallel_for(
        0, rows, kThreadElements / std::max(k, int64_t{1}) + 1,
        [&](int64_t begin, int64_t end) { kernel.prepare(job, begin, end); });
    const int64_t row_bytes = packed.size(1) * 4 * std::max(rows, int64_t{1});
    torch::stable::parallel_for(0, n, kThreadBytes / std::max(row_bytes, int64_t{1}) + 1,
                                [&](int64_t begin, int64_t end) {
                                  if (!kernel.columns(job, begin, end)) valid = false;
                                });
  });
  check<std::invalid_argument>(valid, "packed: expected codes 00, 01 and 10, and zeros past the ",
                               k, " trits of a row, got others");
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("ternary_linear", TORCH_BOX(&ternary_linear));
  m.impl("ternary_linear.inference", TORCH_BOX(&ternary_linear));
}

}  // namespace aegis::ops
