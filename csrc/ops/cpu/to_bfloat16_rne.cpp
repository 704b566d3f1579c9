#include "ops/to_bfloat16_rne.h"

namespace aegis::ops {
namespace {

/// Elements to convert that are worth waking a thread for.
constexpr int64_t kThreadElements = 64 << 10;

void run(const Tensor& x, const Tensor& out) {
  const kernels::ToBfloat16Rne job = bfloat16_job(x, out);
  if (job.count == 0) return;
  const auto kernel = kernels::to_bfloat16_rne_kernel();
  if (job.count <= kThreadElements) return kernel(job, 0, job.count);
  torch::stable::parallel_for(0, job.count, kThreadElements,
                              [&](int64_t begin, int64_t end) { kernel(job, begin, end); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("to_bfloat16_rne", TORCH_BOX(&to_bfloat16_rne<run>));
  m.impl("to_bfloat16_rne.out", TORCH_BOX(&to_bfloat16_rne_out<run>));
}

}  // namespace aegis::ops
