#include "ops/to_bfloat16_rne.h"

#include "kernels/cuda/to_bfloat16_rne.h"
#include "ops/cuda/stream.h"

namespace aegis::ops {
namespace {

void run(const Tensor& x, const Tensor& out) {
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  kernels::cuda::launch_to_bfloat16_rne(bfloat16_job(x, out), current_stream(x.get_device_index()));
}

Tensor to_bfloat16_rne(const Tensor& x) {
  check_to_bfloat16(x);
  Tensor out = torch::stable::new_empty(x, x.sizes(), ScalarType::BFloat16);
  run(x, out);
  return out;
}

void to_bfloat16_rne_out(const Tensor& x, const Tensor& out) {
  check_to_bfloat16_out(x, out);
  run(x, out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("to_bfloat16_rne", TORCH_BOX(&to_bfloat16_rne));
  m.impl("to_bfloat16_rne.out", TORCH_BOX(&to_bfloat16_rne_out));
}

}  // namespace aegis::ops
