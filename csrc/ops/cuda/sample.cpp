#include "ops/sample.h"

#include "kernels/cuda/sample.h"
#include "ops/cuda/stream.h"

namespace aegis::ops {
namespace {

void run(const Tensor& logits, const Tensor& settings, const Tensor& state, bool keep_ties,
         const SampleResult& result) {
  const torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
  with_float_type(logits.scalar_type(), "logits", [&]<class Element>(std::type_identity<Element>) {
    kernels::cuda::launch_sample<Element>(
        sample_job<Element>(logits, settings, state, keep_ties, result), logits.size(0),
        current_stream(logits.get_device_index()));
  });
}

/// Draws from a copy of `state`, so that the same arguments give the same tokens.
SampleTensors sample(const Tensor& logits, const Tensor& settings, const Tensor& state,
                     bool keep_ties) {
  check_sample(logits, settings, state, kernels::cuda::kMostTokensCuda);
  const SampleTensors fresh = sample_tensors(logits);
  const auto& [tokens, valid, logprobs] = fresh;
  run(logits, settings, torch::stable::clone(state), keep_ties, {tokens, valid, logprobs});
  return fresh;
}

void sample_out(const Tensor& logits, const Tensor& settings, const Tensor& state, bool keep_ties,
                const Tensor& tokens, const std::optional<Tensor>& valid,
                const std::optional<Tensor>& logprobs) {
  const SampleResult result{tokens, valid, logprobs};
  check_sample(logits, settings, state, kernels::cuda::kMostTokensCuda);
  check_sample_out(logits, settings, state, result);
  run(logits, settings, state, keep_ties, result);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("sample", TORCH_BOX(&sample));
  m.impl("sample.out", TORCH_BOX(&sample_out));
}

}  // namespace aegis::ops
