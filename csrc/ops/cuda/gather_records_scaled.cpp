#include "ops/gather_records_scaled.h"

#include "kernels/cuda/gather_records_scaled.h"
#include "ops/cuda/stream.h"

namespace aegis::ops {
namespace {

void run(ScalarType dtype, const GatherShape& shape, const Tensor& source, const Tensor& indices,
         const Tensor& scale, const Tensor& bias, const Tensor& out) {
  const torch::stable::accelerator::DeviceGuard guard(source.get_device_index());
  with_scaled_type(dtype, [&]<class Out>(std::type_identity<Out>) {
    kernels::cuda::launch_gather_records_scaled<Out>(
        scaled_job<Out>(shape, source, indices, scale, bias, out), shape.rows,
        current_stream(source.get_device_index()));
  });
}

Tensor gather_records_scaled(const Tensor& source, const Tensor& indices, const Tensor& scale,
                             const Tensor& bias, int64_t dtype) {
  const GatherShape shape = check_gather_scaled(source, indices, scale, bias);
  const ScalarType type = scaled_scalar_type(dtype);
  Tensor out = torch::stable::new_empty(source, shape.out, type);
  run(type, shape, source, indices, scale, bias, out);
  return out;
}

void gather_records_scaled_out(const Tensor& source, const Tensor& indices, const Tensor& scale,
                               const Tensor& bias, const Tensor& out) {
  const GatherShape shape = check_gather_scaled(source, indices, scale, bias);
  const ScalarType type = check_gather_scaled_out(shape, source, indices, scale, bias, out);
  run(type, shape, source, indices, scale, bias, out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("gather_records_scaled", TORCH_BOX(&gather_records_scaled));
  m.impl("gather_records_scaled.out", TORCH_BOX(&gather_records_scaled_out));
}

}  // namespace aegis::ops
