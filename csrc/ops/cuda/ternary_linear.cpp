#include "kernels/cuda/ternary_linear.h"

#include <limits>

#include "ops/cuda/stream.h"
#include "ops/ternary_linear.h"

namespace aegis::ops {
namespace {

Tensor ternary_linear(const Tensor& x, const Tensor& packed, const Tensor& scale,
                      const std::optional<Tensor>& bias, bool exact) {
  const TernaryArguments arguments = check_ternary(x, packed, scale, bias);
  check<std::invalid_argument>(arguments.rows <= std::numeric_limits<int32_t>::max(),
                               "x: expected fewer than 2^31 rows on a GPU, got ", arguments.rows);
  Tensor out = torch::stable::new_empty(x, arguments.shape);
  const torch::stable::accelerator::DeviceGuard guard(out.get_device_index());
  const int64_t rows = exact ? 0 : arguments.rows;
  const Tensor values = torch::stable::new_empty(
      x, {rows, kernels::cuda::ternary_value_bytes(x.size(-1))}, ScalarType::Char);
  const Tensor scales = torch::stable::new_empty(x, {rows}, ScalarType::Float);
  const Tensor sums = torch::stable::new_empty(x, {rows}, ScalarType::Int);
  with_float_type(x.scalar_type(), "x", [&]<class Element>(std::type_identity<Element>) {
    auto job = arguments.job<Element>(out);
    job.values = static_cast<int8_t*>(values.mutable_data_ptr());
    job.scales = static_cast<float*>(scales.mutable_data_ptr());
    job.sums = static_cast<int32_t*>(sums.mutable_data_ptr());
    kernels::cuda::launch_ternary_linear<Element>(job, exact,
                                                  current_stream(out.get_device_index()));
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("ternary_linear", TORCH_BOX(&ternary_linear));
  m.impl("ternary_linear.inference", TORCH_BOX(&ternary_linear));
}

}  // namespace aegis::ops
