// torch's matrix product of float8 values, through the dispatcher.
#pragma once

#include <array>
#include <optional>

#include "ops/abi.h"

namespace aegis::ops {

/// x · weightᵀ in float32, without scales, by aten::_scaled_mm. `x` has `rows` rows; both are
/// contiguous float8_e4m3fn with a multiple of 16 columns, and so are the rows of `weight`.
inline Tensor unscaled_mm(const Tensor& x, int64_t rows, const Tensor& weight) {
  using torch::stable::detail::from;
  const Tensor left = torch::stable::view(x, {rows, weight.size(1)});
  const Tensor right = torch::stable::transpose(weight, 0, 1);
  Tensor one = torch::stable::new_empty(x, {1}, ScalarType::Float);
  torch::stable::fill_(one, 1.0);
  const std::optional<Tensor> none;
  constexpr bool kFastAccumulation = false;  // it keeps about 14 bits of a sum
  std::array<StableIValue, 8> stack{from(left),
                                    from(right),
                                    from(one),
                                    from(one),
                                    from(none),
                                    from(none),
                                    from(std::optional(ScalarType::Float)),
                                    from(kFastAccumulation)};
  check<std::runtime_error>(
      torch_call_dispatcher("aten::_scaled_mm", "", stack.data(), TORCH_ABI_VERSION) == 0,
      "float8_linear: torch._scaled_mm failed for ", shape_of(left), " and ", shape_of(weight));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace aegis::ops
