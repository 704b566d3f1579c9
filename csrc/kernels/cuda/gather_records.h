#pragma once

#include "kernels/gather_records.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// Queues the kernel on `stream`; all of the job's pointers are device memory and `rows` is the
/// number of rows in the source. Rows asked for outside of it become zeroes. Throws
/// std::runtime_error where the launch is refused.
void launch_gather_records(const GatherRecords& job, int64_t rows, CUstream_st* stream);

}  // namespace aegis::kernels::cuda
