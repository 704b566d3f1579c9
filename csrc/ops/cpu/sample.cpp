#include "ops/sample.h"

#include <algorithm>

namespace aegis::ops {
namespace {

/// Logits that are worth waking a thread for.
constexpr int64_t kThreadLogits = 64 << 10;

void run(const Tensor& logits, const Tensor& settings, const Tensor& state, bool keep_ties,
         const SampleResult& result) {
  with_float_type(logits.scalar_type(), "logits", [&]<class Element>(std::type_identity<Element>) {
    const auto job = sample_job<Element>(logits, settings, state, keep_ties, result);
    const auto kernel = kernels::sample_kernel<Element>();
    if (logits.size(0) == 1) return kernel(job, 0, 1);
    torch::stable::parallel_for(0, logits.size(0), kThreadLogits / job.count + 1,
                                [&](int64_t begin, int64_t end) { kernel(job, begin, end); });
  });
}

/// Draws from a copy of `state`, so that the same arguments give the same tokens.
SampleTensors sample(const Tensor& logits, const Tensor& settings, const Tensor& state,
                     bool keep_ties) {
  check_sample(logits, settings, state, kernels::kMostTokens);
  const SampleTensors fresh = sample_tensors(logits);
  const auto& [tokens, valid, logprobs] = fresh;
  run(logits, settings, torch::stable::clone(state), keep_ties, {tokens, valid, logprobs});
  return fresh;
}

void sample_out(const Tensor& logits, const Tensor& settings, const Tensor& state, bool keep_ties,
                const Tensor& tokens, const std::optional<Tensor>& valid,
                const std::optional<Tensor>& logprobs) {
  const SampleResult result{tokens, valid, logprobs};
  check_sample(logits, settings, state, kernels::kMostTokens);
  check_sample_out(logits, settings, state, result);
  run(logits, settings, state, keep_ties, result);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("sample", TORCH_BOX(&sample));
  m.impl("sample.out", TORCH_BOX(&sample_out));
}

}  // namespace aegis::ops
