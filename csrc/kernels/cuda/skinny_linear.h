#pragma once

#include "kernels/skinny_linear.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// Queues the kernel on `stream`; all of the job's pointers are device memory. Throws
/// std::runtime_error where the launch is refused.
template <class Element>
void launch_skinny_linear(const SkinnyLinear<Element>& job, CUstream_st* stream);

}  // namespace aegis::kernels::cuda
