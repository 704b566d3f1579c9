// Quantises rows on torch's threads, for float8_quantize and float8_linear.
#pragma once

#include <algorithm>

#include "kernels/float8_quantize.h"
#include "ops/abi.h"

namespace aegis::ops {

/// Runs the job, and calls `then(begin, end)` with the rows that a thread has filled.
template <class Element, class Then>
void quantize_rows(const kernels::Float8Quantize<Element>& job, Then&& then) {
  constexpr int64_t kThreadElements = 64 << 10;  // that are worth waking a thread for
  const auto kernel = kernels::float8_quantize_kernel<Element>();
  torch::stable::parallel_for(0, job.rows, kThreadElements / std::max(job.k, int64_t{1}) + 1,
                              [&](int64_t begin, int64_t end) {
                                kernel(job, begin, end);
                                then(begin, end);
                              });
}

}  // namespace aegis::ops
