#pragma once

#include "kernels/gather_records_scaled.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// Queues the kernel on `stream`; all of the job's pointers are device memory and `rows` is the
/// number of rows in the source. Rows asked for outside of it become zeroes. Where a scale or bias
/// is not finite, so may be its channel. Throws std::runtime_error where the launch is refused.
template <class Out>
void launch_gather_records_scaled(const GatherRecordsScaled<Out>& job, int64_t rows,
                                  CUstream_st* stream);

}  // namespace aegis::kernels::cuda
