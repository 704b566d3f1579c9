#include "ops/gather_records.h"

#include "kernels/gather_records.h"

namespace aegis::ops {
namespace {

void run(const GatherShape& shape, const Tensor& source, const Tensor& indices, const Tensor& out) {
  kernels::gather_records_kernel()({static_cast<const std::byte*>(source.const_data_ptr()),
                                    shape.row_stride, shape.row_bytes,
                                    indices.const_data_ptr<int64_t>(), shape.batch,
                                    static_cast<std::byte*>(out.mutable_data_ptr())});
}

Tensor gather_records(const Tensor& source, const Tensor& indices) {
  const GatherShape shape = check_gather(source, indices);
  check_rows(indices, shape);
  Tensor out = torch::stable::new_empty(source, shape.out);
  run(shape, source, indices, out);
  return out;
}

void gather_records_out(const Tensor& source, const Tensor& indices, const Tensor& out) {
  const GatherShape shape = check_gather(source, indices);
  check_dtype(out, source.scalar_type(), "out");
  check_gather_out(shape, source, indices, out);
  check_rows(indices, shape);
  run(shape, source, indices, out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("gather_records", TORCH_BOX(&gather_records));
  m.impl("gather_records.out", TORCH_BOX(&gather_records_out));
}

}  // namespace aegis::ops
