// What the CPU and CUDA sides of sample have in common: the checks.
#pragma once

#include <optional>
#include <tuple>

#include "kernels/sample.h"
#include "ops/abi.h"

namespace aegis::ops {

/// Where a draw goes. What is null is not asked for.
struct SampleResult {
  Tensor tokens;
  std::optional<Tensor> valid, logprobs;
};

/// The job that draws from `logits`, all of whose tensors have been checked; the pointers live as
/// long as they do.
template <class Element>
kernels::Sample<Element> sample_job(const Tensor& logits, const Tensor& settings,
                                    const Tensor& state, bool keep_ties,
                                    const SampleResult& result) {
  static_assert(sizeof(kernels::SampleSettings) == 4 * sizeof(float));
  static_assert(sizeof(kernels::SampleState) == 4 * sizeof(int64_t));
  const auto optional = []<class T>(const std::optional<Tensor>& t, T*) {
    return t ? static_cast<T*>(t->mutable_data_ptr()) : nullptr;
  };
  return {static_cast<const Element*>(logits.const_data_ptr()),
          logits.stride(0),
          logits.size(1),
          static_cast<const kernels::SampleSettings*>(settings.const_data_ptr()),
          settings.size(0) == 1 ? 0 : 1,
          static_cast<kernels::SampleState*>(state.mutable_data_ptr()),
          keep_ties,
          static_cast<int64_t*>(result.tokens.mutable_data_ptr()),
          optional(result.valid, static_cast<bool*>(nullptr)),
          optional(result.logprobs, static_cast<float*>(nullptr))};
}

/// Scores of tokens, in rows that may lie apart.
inline void check_scores(const Tensor& scores, const char* name, int64_t most_tokens) {
  with_float_type(scores.scalar_type(), name, [](auto) {});
  check<std::invalid_argument>(scores.dim() == 2, name,
                               ": expected a 2-D tensor (rows, tokens), got shape ",
                               shape_of(scores));
  const int64_t count = scores.size(1);
  check<std::invalid_argument>(count >= 1 && count <= most_tokens, name, ": expected 1 to ",
                               most_tokens, " tokens in a row, got shape ", shape_of(scores));
  check<std::invalid_argument>(count == 1 || scores.stride(1) == 1, name,
                               ": expected rows of adjacent elements (stride 1), got stride ",
                               scores.stride(1));
}

inline void check_sample_settings(const Tensor& settings, const Tensor& scores,
                                  const char* scores_name) {
  check_dtype(settings, ScalarType::Float, "settings");
  const int64_t rows = scores.size(0);
  check<std::invalid_argument>(
      settings.dim() == 2 && (settings.size(0) == 1 || settings.size(0) == rows) &&
          settings.size(1) == 4 && settings.is_contiguous(),
      "settings: expected a contiguous tensor of shape [1, 4] or [", rows,
      ", 4] (temperature, top_k, top_p, min_p), got shape ", shape_of(settings),
      settings.is_contiguous() ? "" : ", not contiguous");
  check_same_device(settings, scores, "settings", scores_name);
}

inline void check_sample(const Tensor& logits, const Tensor& settings, const Tensor& state,
                         int64_t most_tokens) {
  check_scores(logits, "logits", most_tokens);
  check_sample_settings(settings, logits, "logits");
  check_dtype(state, ScalarType::Long, "state");
  check_matrix(state, logits.size(0), 4, "state");
  check_same_device(state, logits, "state", "logits");
}

inline void check_sample_result(const Tensor& t, ScalarType dtype, const Tensor& logits,
                                const char* name) {
  check_dtype(t, dtype, name);
  check<std::invalid_argument>(t.dim() == 1 && t.size(0) == logits.size(0) && t.is_contiguous(),
                               name, ": expected a contiguous tensor of shape [", logits.size(0),
                               "], got shape ", shape_of(t),
                               t.is_contiguous() ? "" : ", not contiguous");
  check_same_device(t, logits, name, "logits");
}

/// Checks the tensors that sample.out writes, after check_sample.
inline void check_sample_out(const Tensor& logits, const Tensor& settings, const Tensor& state,
                             const SampleResult& result) {
  check_sample_result(result.tokens, ScalarType::Long, logits, "tokens");
  if (result.valid) check_sample_result(*result.valid, ScalarType::Bool, logits, "valid");
  if (result.logprobs) check_sample_result(*result.logprobs, ScalarType::Float, logits, "logprobs");

  struct Named {
    const Tensor* tensor;
    const char* name;
  };
  const Named operands[] = {{&logits, "logits"},
                            {&settings, "settings"},
                            {&state, "state"},
                            {&result.tokens, "tokens"},
                            {result.valid ? &*result.valid : nullptr, "valid"},
                            {result.logprobs ? &*result.logprobs : nullptr, "logprobs"}};
  for (size_t i = 2; i < std::size(operands); ++i) {  // those that are written
    const Tensor* written = operands[i].tensor;
    if (!written) continue;
    const Extent extent = extent_of(*written, written->element_size());
    for (size_t j = 0; j < i; ++j) {
      const Tensor* other = operands[j].tensor;
      if (!other) continue;
      check_disjoint(extent, extent_of(*other, other->element_size()), operands[i].name,
                     operands[j].name);
    }
  }
}

using SampleTensors = std::tuple<Tensor, Tensor, Tensor>;

/// Fresh tensors for tokens, valid and logprobs.
inline SampleTensors sample_tensors(const Tensor& logits) {
  const std::vector<int64_t> shape{logits.size(0)};
  return {torch::stable::new_empty(logits, shape, ScalarType::Long),
          torch::stable::new_empty(logits, shape, ScalarType::Bool),
          torch::stable::new_empty(logits, shape, ScalarType::Float)};
}

}  // namespace aegis::ops
