#pragma once

#include "kernels/ternary_linear.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// Bytes between rows of the job's values, which begin at a multiple of 16 bytes.
int64_t ternary_value_bytes(int64_t k);

/// Queues the kernels on `stream`; all of the job's pointers are device memory. With int8
/// activations the job has memory for values (rows of ternary_value_bytes()), scales and sums;
/// exact, it needs none. At most 2³¹ - 1 rows. Columns that meet a code of 11 are NaN. Throws
/// std::runtime_error where a launch is refused.
template <class Element>
void launch_ternary_linear(const TernaryLinear<Element>& job, bool exact, CUstream_st* stream);

}  // namespace aegis::kernels::cuda
