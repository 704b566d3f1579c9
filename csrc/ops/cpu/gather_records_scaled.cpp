#include "ops/gather_records_scaled.h"

#include <cmath>

namespace aegis::ops {
namespace {

void check_finite(const Tensor& values, const char* name) {
  const float* value = values.const_data_ptr<float>();
  for (int64_t c = 0; c < values.numel(); ++c) {
    check<std::invalid_argument>(std::isfinite(value[c]), name, "[", c,
                                 "]: expected a finite number, got ", value[c]);
  }
}

void run(ScalarType dtype, const GatherShape& shape, const Tensor& source, const Tensor& indices,
         const Tensor& scale, const Tensor& bias, const Tensor& out) {
  with_scaled_type(dtype, [&]<class Out>(std::type_identity<Out>) {
    kernels::gather_records_scaled_kernel<Out>()(
        scaled_job<Out>(shape, source, indices, scale, bias, out));
  });
}

Tensor gather_records_scaled(const Tensor& source, const Tensor& indices, const Tensor& scale,
                             const Tensor& bias, int64_t dtype) {
  const GatherShape shape = check_gather_scaled(source, indices, scale, bias);
  const ScalarType type = scaled_scalar_type(dtype);
  check_finite(scale, "scale");
  check_finite(bias, "bias");
  check_rows(indices, shape);
  Tensor out = torch::stable::new_empty(source, shape.out, type);
  run(type, shape, source, indices, scale, bias, out);
  return out;
}

void gather_records_scaled_out(const Tensor& source, const Tensor& indices, const Tensor& scale,
                               const Tensor& bias, const Tensor& out) {
  const GatherShape shape = check_gather_scaled(source, indices, scale, bias);
  const ScalarType type = check_gather_scaled_out(shape, source, indices, scale, bias, out);
  check_finite(scale, "scale");
  check_finite(bias, "bias");
  check_rows(indices, shape);
  run(type, shape, source, indices, scale, bias, out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("gather_records_scaled", TORCH_BOX(&gather_records_scaled));
  m.impl("gather_records_scaled.out", TORCH_BOX(&gather_records_scaled_out));
}

}  // namespace aegis::ops
