#include "kernels/cuda/float8_quantize.h"

#include <tuple>

#include "ops/cuda/stream.h"
#include "ops/float8_quantize.h"

namespace aegis::ops {
namespace {

std::tuple<Tensor, Tensor> float8_quantize(const Tensor& x, int64_t block) {
  const Float8Groups groups = check_float8_quantize(x, block);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Float8Quantized result = float8_quantized(x, groups);
  with_float_type(x.scalar_type(), "x", [&]<class Element>(std::type_identity<Element>) {
    kernels::cuda::launch_float8_quantize<Element>(result.job<Element>(), nullptr,
                                                   current_stream(x.get_device_index()));
  });
  return {result.values, result.scales};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("float8_quantize", TORCH_BOX(&float8_quantize));
}

}  // namespace aegis::ops
