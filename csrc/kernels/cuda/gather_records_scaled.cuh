// gather_records_scaled on the GPU: one thread a value, a block takes several channels where they
// are short.
#pragma once

#include "kernels/cuda/simt.cuh"
#include "kernels/gather_records_scaled.h"
#include "kernels/scale_value.h"

namespace aegis::kernels::cuda {

/// Channels of all rows of the batch along y, values of a channel along x. A row outside the
/// source's `rows` is not read, and becomes zeroes.
template <class Out>
__global__ void gather_records_scaled(GatherRecordsScaled<Out> job, int64_t rows) {
  const int64_t size = job.channel_size;
  const int64_t lines = job.batch * job.channels;
  const int64_t line_step = int64_t{blockDim.y} * gridDim.y;
  const int64_t value_step = int64_t{blockDim.x} * gridDim.x;
  for (int64_t line = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; line < lines;
       line += line_step) {
    const int64_t row = line / job.channels, channel = line - row * job.channels;
    const int64_t asked = job.indices[row];
    const bool inside = 0 <= asked && asked < rows;
    const int64_t index = inside ? asked : 0;
    const uint8_t* from = job.source + index * job.row_stride + channel * size;
    const float scale = job.scale[channel], bias = job.bias[channel];
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += value_step) {
      job.out[line * size + i] = inside ? scale_value<Out>(from[i], scale, bias) : Out{0};
    }
  }
}

}  // namespace aegis::kernels::cuda
