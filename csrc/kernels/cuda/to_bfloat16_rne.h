#pragma once

#include "kernels/to_bfloat16_rne.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// Queues the kernel on `stream`; both pointers of the job are device memory. Throws
/// std::runtime_error where the launch is refused.
void launch_to_bfloat16_rne(const ToBfloat16Rne& job, CUstream_st* stream);

}  // namespace aegis::kernels::cuda
