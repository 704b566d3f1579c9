#include "kernels/cuda/kv_append_.h"

#include "ops/cuda/stream.h"
#include "ops/kv_append_.h"

namespace aegis::ops {
namespace {

void append(const Tensor& keys, const Tensor& values, const Tensor& new_keys,
            const Tensor& new_values, const Tensor& positions, const std::optional<Tensor>& rows,
            const std::optional<Tensor>& blocks) {
  const kernels::KvAppend job =
      check_kv_append(keys, values, new_keys, new_values, positions, rows, blocks);
  const torch::stable::accelerator::DeviceGuard guard(keys.get_device_index());
  kernels::cuda::launch_kv_append(job, current_stream(keys.get_device_index()));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("kv_append_", TORCH_BOX(&kv_append<append>));
  m.impl("kv_append_.paged", TORCH_BOX(&kv_append_paged<append>));
}

}  // namespace aegis::ops
