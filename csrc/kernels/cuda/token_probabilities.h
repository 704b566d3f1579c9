#pragma once

#include "kernels/cuda/sample.h"
#include "kernels/token_probabilities.h"

namespace aegis::kernels::cuda {

/// Queues `rows` rows on `stream`; all of the job's pointers are device memory, and job.count is at
/// most kMostTokensCuda. Throws std::runtime_error where the launch is refused.
template <class Element>
void launch_token_probabilities(const TokenProbabilities<Element>& job, int64_t rows,
                                CUstream_st* stream);

}  // namespace aegis::kernels::cuda
