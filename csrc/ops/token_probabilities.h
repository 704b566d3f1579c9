// What the CPU and CUDA sides of token_probabilities have in common: the checks.
#pragma once

#include "kernels/token_probabilities.h"
#include "ops/sample.h"

namespace aegis::ops {

/// The job that fills `out`, all of whose tensors have been checked; the pointers live as long as
/// they do.
template <class Element>
kernels::TokenProbabilities<Element> token_probabilities_job(const Tensor& scores,
                                                             const Tensor& settings, bool keep_ties,
                                                             const Tensor& out) {
  return {static_cast<const Element*>(scores.const_data_ptr()),
          scores.stride(0),
          scores.size(1),
          static_cast<const kernels::SampleSettings*>(settings.const_data_ptr()),
          settings.size(0) == 1 ? 0 : 1,
          keep_ties,
          static_cast<float*>(out.mutable_data_ptr()),
          out.stride(0)};
}

inline void check_token_probabilities(const Tensor& scores, const Tensor& settings,
                                      int64_t most_tokens) {
  check_scores(scores, "scores", most_tokens);
  check_sample_settings(settings, scores, "scores");
}

/// Checks the tensor that token_probabilities.out writes, after check_token_probabilities.
inline void check_token_probabilities_out(const Tensor& scores, const Tensor& settings,
                                          const Tensor& out) {
  check_dtype(out, ScalarType::Float, "out");
  const int64_t rows = scores.size(0), count = scores.size(1);
  check<std::invalid_argument>(out.dim() == 2 && out.size(0) == rows && out.size(1) == count,
                               "out: expected shape [", rows, ", ", count, "], got shape ",
                               shape_of(out));
  check<std::invalid_argument>(
      (count == 1 || out.stride(1) == 1) && (rows <= 1 || out.stride(0) >= count),
      "out: expected rows of adjacent elements that do not overlap, got "
      "strides [",
      out.stride(0), ", ", out.stride(1), "]");
  check_same_device(out, scores, "out", "scores");
  const Extent written = extent_of(out, sizeof(float));
  check_disjoint(written, extent_of(scores, scores.element_size()), "out", "scores");
  check_disjoint(written, extent_of(settings, sizeof(float)), "out", "settings");
}

/// A fresh tensor for the result.
inline Tensor token_probabilities_tensor(const Tensor& scores) {
  return torch::stable::new_empty(scores, {scores.size(0), scores.size(1)}, ScalarType::Float);
}

}  // namespace aegis::ops
