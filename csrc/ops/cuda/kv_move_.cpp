#include "kernels/cuda/kv_move_.h"

#include "ops/cuda/stream.h"
#include "ops/kv_move_.h"

namespace aegis::ops {
namespace {

void kv_move(const Tensor& keys, const Tensor& values, const Tensor& sources,
             const Tensor& positions, const std::optional<Tensor>& rows) {
  const kernels::KvMove job = check_kv_move(keys, values, sources, positions, rows);
  const torch::stable::accelerator::DeviceGuard guard(keys.get_device_index());
  kernels::cuda::launch_kv_move(job, current_stream(keys.get_device_index()));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) { m.impl("kv_move_", TORCH_BOX(&kv_move)); }

}  // namespace aegis::ops
