#pragma once

#include "kernels/kv_move_.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// Queues the kernel on `stream`; all of the job's pointers are device memory. Sources, positions
/// and rows are read there, when the kernel runs: a batch row whose position is negative, or whose
/// row the cache does not have, is left as it is, and so is a token whose source does not lie
/// behind its place. Throws std::runtime_error where the launch is refused.
void launch_kv_move(const KvMove& job, CUstream_st* stream);

}  // namespace aegis::kernels::cuda
