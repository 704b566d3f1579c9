#include "kernels/cuda/token_probabilities.h"

#include "ops/cuda/stream.h"
#include "ops/token_probabilities.h"

namespace aegis::ops {
namespace {

void run(const Tensor& scores, const Tensor& settings, bool keep_ties, const Tensor& out) {
  const torch::stable::accelerator::DeviceGuard guard(scores.get_device_index());
  with_float_type(scores.scalar_type(), "scores", [&]<class Element>(std::type_identity<Element>) {
    kernels::cuda::launch_token_probabilities<Element>(
        token_probabilities_job<Element>(scores, settings, keep_ties, out), scores.size(0),
        current_stream(scores.get_device_index()));
  });
}

Tensor token_probabilities(const Tensor& scores, const Tensor& settings, bool keep_ties) {
  check_token_probabilities(scores, settings, kernels::cuda::kMostTokensCuda);
  const Tensor out = token_probabilities_tensor(scores);
  run(scores, settings, keep_ties, out);
  return out;
}

void token_probabilities_out(const Tensor& scores, const Tensor& settings, bool keep_ties,
                             const Tensor& out) {
  check_token_probabilities(scores, settings, kernels::cuda::kMostTokensCuda);
  check_token_probabilities_out(scores, settings, out);
  run(scores, settings, keep_ties, out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("token_probabilities", TORCH_BOX(&token_probabilities));
  m.impl("token_probabilities.out", TORCH_BOX(&token_probabilities_out));
}

}  // namespace aegis::ops
