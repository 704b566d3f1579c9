#pragma once

#include "kernels/extract_batch.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// Queues the kernel on `stream`; all of the job's pointers are device memory and `tokens` is the
/// arena's length. Rows whose window lies outside the arena become -1. Throws std::runtime_error
/// where the launch is refused.
template <class Token, class Input>
void launch_extract_batch(const ExtractBatch<Token, Input>& job, int64_t tokens,
                          CUstream_st* stream);

}  // namespace aegis::kernels::cuda
