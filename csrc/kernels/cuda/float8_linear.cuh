// float8_linear on the GPU: a warp for each row of weights, which meets all rows of x in one pass.
#pragma once

#include <cstdint>

#include "kernels/cuda/float8_linear.h"
#include "kernels/cuda/float8_put.cuh"
#include "kernels/cuda/float8_quantize.h"
#include "kernels/cuda/simt.cuh"

namespace aegis::kernels::cuda {

constexpr int kFloat8LinearThreads = 128;  // of a block: four warps
constexpr int kFloat8Pack = 16;            // weights that a lane takes at once: a part of one group

struct alignas(16) Float8Pack {
  uint8_t codes[kFloat8Pack];
};
struct alignas(16) Float8Inputs {
  BFloat16 values[kFloat8Pack];
};

/// `Rows` is at least the job's rows; what is more is computed and dropped.
template <int Rows>
__global__ void float8_linear(Float8Linear job) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int64_t first = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const int64_t stride = float8_spread_stride(job.k);
  const auto* x = static_cast<const BFloat16*>(job.x);
  const bool blocks = job.group == kFloat8Block;
  for (int64_t column = first; column < job.n; column += warps) {
    const uint8_t* weight = job.weight + column * job.weight_stride;
    const bool aligned = reinterpret_cast<uintptr_t>(weight) % sizeof(Float8Pack) == 0;
    float totals[Rows] = {};
    for (int64_t at = int64_t{lane} * kFloat8Pack; at < job.k; at += 32 * kFloat8Pack) {
      const int64_t left = job.k - at;
      const int count = left < kFloat8Pack ? static_cast<int>(left) : kFloat8Pack;
      float weights[kFloat8Pack];
      if (aligned && count == kFloat8Pack) {
        const Float8Pack pack = *reinterpret_cast<const Float8Pack*>(weight + at);
#pragma unroll
        for (int j = 0; j < kFloat8Pack; ++j) weights[j] = e4m3_to_float(pack.codes[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kFloat8Pack; ++j) {
          weights[j] = j < count ? e4m3_to_float(weight[at + j]) : 0.0f;
        }
      }
      const int64_t group = blocks ? at / kFloat8Block : 0;
      const float weight_scale = job.weight_scale[column * job.groups + group];
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        const int64_t source = row < job.rows ? row : 0;
        float sum = 0;
        if (count == kFloat8Pack) {
          const Float8Inputs inputs =
              *reinterpret_cast<const Float8Inputs*>(x + source * stride + at);
#pragma unroll
          for (int j = 0; j < kFloat8Pack; ++j) sum += to_float(inputs.values[j]) * weights[j];
        } else {
          for (int j = 0; j < count; ++j) sum += to_float(x[source * stride + at + j]) * weights[j];
        }
        totals[row] += sum * (job.x_scale[source * job.groups + group] * weight_scale);
      }
    }
#pragma unroll
    for (int row = 0; row < Rows; ++row) {
      for (int mask = 16; mask > 0; mask /= 2) {
        totals[row] += __shfl_xor_sync(0xffffffffu, totals[row], mask);
      }
      if (lane == 0 && row < job.rows) float8_put(job, row, column, totals[row]);
    }
  }
}

__global__ void float8_rescale(Float8Linear job, const float* products) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < job.rows * job.n;
       i += step) {
    const int64_t row = i / job.n, column = i % job.n;
    float8_put(job, row, column, products[i] * (job.x_scale[row] * job.weight_scale[column]));
  }
}

}  // namespace aegis::kernels::cuda
