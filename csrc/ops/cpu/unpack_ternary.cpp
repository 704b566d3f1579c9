#include "kernels/unpack_ternary.h"

#include <algorithm>

#include "kernels/ternary_linear.h"
#include "ops/ternary.h"

namespace aegis::ops {
namespace {

/// Weights that are worth waking a thread for.
constexpr int64_t kThreadWeights = 64 << 10;

Tensor unpack_ternary(const Tensor& packed, const Tensor& scale, int64_t k) {
  check<std::invalid_argument>(k >= 0, "k: expected at least 0, got ", k);
  check_packed(packed, k);
  const int64_t n = packed.size(0), words = packed.size(1);
  check_scale(scale, n, packed, "packed");
  const auto* codes = static_cast<const uint32_t*>(packed.const_data_ptr());
  for (int64_t row = 0; row < n; ++row) {
    const int64_t bad = kernels::first_bad_trit(codes + row * words, k);
    check<std::invalid_argument>(bad < 0, "packed: expected codes 00, 01 and 10",
                                 bad < k ? "" : " and zeros that fill up the row",
                                 ", got another at trit ", bad, " of row ", row);
  }
  const Tensor scales = as_contiguous(scale);
  const auto* values = static_cast<const float*>(scales.const_data_ptr());
  check<std::invalid_argument>(kernels::all_finite(values, scales.numel()),
                               "scale: expected finite values, got others");
  const int64_t step = scales.numel() == 1 ? 0 : 1;
  Tensor out = torch::stable::new_empty(packed, {n, k}, ScalarType::Float);
  auto* weights = static_cast<float*>(out.mutable_data_ptr());
  torch::stable::parallel_for(
      0, n, kThreadWeights / std::max(k, int64_t{1}) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          kernels::unpack_row(codes + row * words, k, values[row * step], weights + row * k);
        }
      });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) { m.impl("unpack_ternary", TORCH_BOX(&unpack_ternary)); }

}  // namespace aegis::ops
