#include "kernels/cuda/skinny_linear.h"

#include "ops/cuda/stream.h"
#include "ops/skinny_linear.h"

namespace aegis::ops {
namespace {

void run(const SkinnyArguments& arguments, const Tensor& out) {
  const torch::stable::accelerator::DeviceGuard guard(out.get_device_index());
  with_float_type(out.scalar_type(), "x", [&]<class Element>(std::type_identity<Element>) {
    kernels::cuda::launch_skinny_linear<Element>(arguments.job<Element>(out),
                                                 current_stream(out.get_device_index()));
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("skinny_linear", TORCH_BOX(&skinny_linear<run>));
  m.impl("skinny_linear.inference", TORCH_BOX(&skinny_linear<run>));
  m.impl("skinny_linear.out", TORCH_BOX(&skinny_linear_out<run>));
}

}  // namespace aegis::ops
