// One element of float8_linear's result, for all of its kernels on the GPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.cuh"
#include "kernels/float8_linear.h"

namespace aegis::kernels::cuda {

/// Adds the bias to `value` and writes it as the job's type.
__device__ inline void float8_put(const Float8Linear& job, int64_t row, int64_t column,
                                  float value) {
  const int64_t at = row * job.n + column;
  if (job.type == Float8Result::float32) {
    if (job.bias) value += static_cast<const float*>(job.bias)[column];
    static_cast<float*>(job.out)[at] = value;
  } else if (job.type == Float8Result::float16) {
    if (job.bias) value += to_float(static_cast<const Half*>(job.bias)[column]);
    static_cast<Half*>(job.out)[at] = from_float<Half>(value);
  } else {
    if (job.bias) value += to_float(static_cast<const BFloat16*>(job.bias)[column]);
    static_cast<BFloat16*>(job.out)[at] = from_float<BFloat16>(value);
  }
}

}  // namespace aegis::kernels::cuda
