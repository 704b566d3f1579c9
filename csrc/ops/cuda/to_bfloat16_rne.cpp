#include "ops/to_bfloat16_rne.h"

#include "kernels/cuda/to_bfloat16_rne.h"
#include "ops/cuda/stream.h"

namespace aegis::ops {
namespace {

void run(const Tensor& x, const Tensor& out) {
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  kernels::cuda::launch_to_bfloat16_rne(bfloat16_job(x, out), current_stream(x.get_device_index()));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("to_bfloat16_rne", TORCH_BOX(&to_bfloat16_rne<run>));
  m.impl("to_bfloat16_rne.out", TORCH_BOX(&to_bfloat16_rne_out<run>));
}

}  // namespace aegis::ops
