#include "ops/gather_records.h"

#include "kernels/cuda/gather_records.h"
#include "ops/cuda/stream.h"

namespace aegis::ops {
namespace {

void run(const GatherShape& shape, const Tensor& source, const Tensor& indices, const Tensor& out) {
  const torch::stable::accelerator::DeviceGuard guard(source.get_device_index());
  kernels::cuda::launch_gather_records(
      {static_cast<const std::byte*>(source.const_data_ptr()), shape.row_stride, shape.row_bytes,
       indices.const_data_ptr<int64_t>(), shape.batch,
       static_cast<std::byte*>(out.mutable_data_ptr())},
      shape.rows, current_stream(source.get_device_index()));
}

Tensor gather_records(const Tensor& source, const Tensor& indices) {
  const GatherShape shape = check_gather(source, indices);
  Tensor out = torch::stable::new_empty(source, shape.out);
  run(shape, source, indices, out);
  return out;
}

void gather_records_out(const Tensor& source, const Tensor& indices, const Tensor& out) {
  const GatherShape shape = check_gather(source, indices);
  check_dtype(out, source.scalar_type(), "out");
  check_gather_out(shape, source, indices, out);
  run(shape, source, indices, out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("gather_records", TORCH_BOX(&gather_records));
  m.impl("gather_records.out", TORCH_BOX(&gather_records_out));
}

}  // namespace aegis::ops
