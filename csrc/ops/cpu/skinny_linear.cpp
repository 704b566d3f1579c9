#include "ops/skinny_linear.h"

#include <algorithm>

namespace aegis::ops {
namespace {

/// Bytes of weights that are worth waking a thread for.
constexpr int64_t kThreadBytes = 128 << 10;

void run(const SkinnyArguments& arguments, const Tensor& out) {
  with_float_type(out.scalar_type(), "x", [&]<class Element>(std::type_identity<Element>) {
    const auto job = arguments.job<Element>(out);
    const auto kernel = kernels::skinny_linear_kernel<Element>();
    const int64_t row_bytes = job.k * static_cast<int64_t>(sizeof(Element));
    torch::stable::parallel_for(0, job.n, kThreadBytes / std::max(row_bytes, int64_t{1}) + 1,
                                [&](int64_t begin, int64_t end) { kernel(job, begin, end); });
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("skinny_linear", TORCH_BOX(&skinny_linear<run>));
  m.impl("skinny_linear.inference", TORCH_BOX(&skinny_linear<run>));
  m.impl("skinny_linear.out", TORCH_BOX(&skinny_linear_out<run>));
}

}  // namespace aegis::ops
