#include "ops/token_probabilities.h"

namespace aegis::ops {
namespace {

/// Scores that are worth waking a thread for.
constexpr int64_t kThreadScores = 64 << 10;

void run(const Tensor& scores, const Tensor& settings, bool keep_ties, const Tensor& out) {
  with_float_type(scores.scalar_type(), "scores", [&]<class Element>(std::type_identity<Element>) {
    const auto job = token_probabilities_job<Element>(scores, settings, keep_ties, out);
    const auto kernel = kernels::token_probabilities_kernel<Element>();
    if (scores.size(0) == 1) return kernel(job, 0, 1);
    torch::stable::parallel_for(0, scores.size(0), kThreadScores / job.count + 1,
                                [&](int64_t begin, int64_t end) { kernel(job, begin, end); });
  });
}

Tensor token_probabilities(const Tensor& scores, const Tensor& settings, bool keep_ties) {
  check_token_probabilities(scores, settings, kernels::kMostTokens);
  const Tensor out = token_probabilities_tensor(scores);
  run(scores, settings, keep_ties, out);
  return out;
}

void token_probabilities_out(const Tensor& scores, const Tensor& settings, bool keep_ties,
                             const Tensor& out) {
  check_token_probabilities(scores, settings, kernels::kMostTokens);
  check_token_probabilities_out(scores, settings, out);
  run(scores, settings, keep_ties, out);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("token_probabilities", TORCH_BOX(&token_probabilities));
  m.impl("token_probabilities.out", TORCH_BOX(&token_probabilities_out));
}

}  // namespace aegis::ops
