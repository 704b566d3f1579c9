#pragma once

#include "kernels/sample.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// The longest row: a block's shared memory holds sums of its parts.
constexpr int64_t kMostTokensCuda = int64_t{1} << 25;

/// Queues draws for `rows` rows on `stream`; all of the job's pointers are device memory, and
/// job.count is at most kMostTokensCuda. Throws std::runtime_error where the launch is refused.
template <class Element>
void launch_sample(const Sample<Element>& job, int64_t rows, CUstream_st* stream);

}  // namespace aegis::kernels::cuda
