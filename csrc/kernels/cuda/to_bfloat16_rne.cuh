// to_bfloat16_rne on the GPU: one thread an element.
#pragma once

#include "kernels/convert.h"
#include "kernels/cuda/simt.cuh"
#include "kernels/to_bfloat16_rne.h"

namespace aegis::kernels::cuda {

__global__ void to_bfloat16_rne(ToBfloat16Rne job) {
  const int64_t step = int64_t{blockDim.x} * gridDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < job.count; i += step) {
    int64_t rest = i, from = 0, to = 0;
    for (int d = job.dims - 1; d > 0; --d) {
      const int64_t outer = rest / job.sizes[d], at = rest - outer * job.sizes[d];
      from += at * job.x_strides[d];
      to += at * job.out_strides[d];
      rest = outer;
    }
    from += rest * job.x_strides[0];
    to += rest * job.out_strides[0];
    job.out[to] = float_to_bfloat16(job.x[from]);
  }
}

}  // namespace aegis::kernels::cuda
