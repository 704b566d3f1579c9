#pragma once

#include "kernels/kv_append_.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// Queues the kernel on `stream`; all of the job's pointers are device memory. Positions and rows
/// are read there, when the kernel runs: a batch row whose position is negative, or whose row the
/// cache does not have, is not written, and neither is a token whose page is not there. Throws
/// std::runtime_error where the launch is refused.
void launch_kv_append(const KvAppend& job, CUstream_st* stream);

}  // namespace aegis::kernels::cuda
