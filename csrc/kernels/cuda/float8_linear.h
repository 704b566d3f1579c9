#pragma once

#include "kernels/float8_linear.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// Rows that the kernel takes at once.
constexpr int64_t kFloat8GemvRows = 16;

/// Queues the kernel for up to kFloat8GemvRows rows on `stream`. All of the job's pointers are
/// device memory; `x` is what launch_float8_quantize spread. Throws std::runtime_error where the
/// launch is refused.
void launch_float8_linear(const Float8Linear& job, CUstream_st* stream);

/// Queues out = products · x_scale · weight_scale + bias, where `products`, (rows, n), are sums
/// without scales. The job has one group, any number of rows, and neither x nor weight.
void launch_float8_rescale(const Float8Linear& job, const float* products, CUstream_st* stream);

}  // namespace aegis::kernels::cuda
