// ternary_linear on the GPU: a block prepares a row of x; then a warp for each row of weights meets
// a few rows of x at a time. For many rows see ternary_tiles.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.cuh"
#include "kernels/ternary_linear.h"

namespace aegis::kernels::cuda {

constexpr int kTernaryThreads = 128;  // of a block: four warps
constexpr uint32_t kTwoBitsOfBytes = 0x03030303;

/// Where activation `i` of a row stands: bits 2s, 2s + 1 of the four bytes of a word are trits s,
/// 4 + s, 8 + s and 12 + s, whose activations are the four bytes of one operand of dp4a.
AEGIS_HOST_DEVICE constexpr int64_t ternary_cuda_place(int64_t i) {
  return i / 16 * 16 + i % 4 * 4 + i % 16 / 4;
}

/// Bytes between prepared rows.
AEGIS_HOST_DEVICE constexpr int64_t ternary_cuda_padded(int64_t k) { return (k + 15) / 16 * 16; }

/// Of `value` over the block, by all of its threads; `room` holds one for each warp.
template <class T, class Combine>
__device__ T ternary_over_block(T value, T* room, Combine&& combine) {
  for (int mask = 16; mask > 0; mask /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, mask));
  }
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  value = room[0];
  for (int warp = 1; warp < kTernaryThreads / 32; ++warp) value = combine(value, room[warp]);
  return value;
}

/// Fills the job's values, scales and sums as TernaryLinear says, in the order of
/// ternary_cuda_place(). A block for each row.
template <class Element>
__global__ void ternary_prepare(TernaryLinear<Element> job) {
  AEGIS_SHARED(unsigned, magnitudes, [kTernaryThreads / 32]);
  AEGIS_SHARED(int, totals, [kTernaryThreads / 32]);
  constexpr unsigned kInfinity = 0x7f800000u;
  const int64_t row = blockIdx.x;
  const Element* x = job.x + row * job.k;
  int8_t* values = job.values + row * ternary_cuda_padded(job.k);
  unsigned mine = 0;
  for (int64_t i = threadIdx.x; i < job.k; i += blockDim.x) {
    const unsigned magnitude = __float_as_uint(to_float(x[i])) & 0x7fffffffu;
    mine = magnitude > mine ? magnitude : mine;
  }
  const unsigned bits =
      ternary_over_block(mine, magnitudes, [](unsigned a, unsigned b) { return a > b ? a : b; });
  const bool nothing = bits == 0 || bits >= kInfinity;
  const float largest = nothing ? 1.0f : __uint_as_float(bits);
  const float enlarged = largest < 0x1p-100f ? 0x1p100f : 1.0f;
  const float factor = nothing ? 0.0f : __fdiv_rn(127.0f, __fmul_rn(largest, enlarged));
  int sum = 0;
  for (int64_t i = threadIdx.x; i < ternary_cuda_padded(job.k); i += blockDim.x) {
    int value = 0;
    if (i < job.k && !nothing) {
      value = __float2int_rn(__fmul_rn(__fmul_rn(to_float(x[i]), enlarged), factor));
    }
    values[ternary_cuda_place(i)] = static_cast<int8_t>(value);
    sum += value;
  }
  sum = ternary_over_block(sum, totals, [](int a, int b) { return a + b; });
  if (threadIdx.x == 0) {
    job.sums[row] = sum;
    job.scales[row] = bits == 0 ? 1.0f
                      : nothing ? __uint_as_float(0x7fc00000u)
                                : __fdiv_rn(largest, 127.0f);
  }
}

/// The digits 1 - trit of a word of codes, in their places.
__device__ inline uint32_t ternary_digits(uint32_t codes) {
  return codes ^ (~(codes >> 1) & kLowBits);
}

/// What a row of weights holds past its `k` trits, in the last of its words: zero where it is as it
/// should be.
__device__ inline uint32_t ternary_past(uint32_t last, int64_t k) {
  const int left = static_cast<int>(k % kTritsInWord);
  return left == 0 ? 0 : last >> 2 * left;
}

/// The four digits that meet word `s` of an int4 of prepared activations, as bytes.
__device__ inline int ternary_bytes(uint32_t digits, int s) {
  return static_cast<int>(digits >> 2 * s & kTwoBitsOfBytes);
}

/// Writes an element of the result from its sum of value · digit.
template <class Element>
__device__ void ternary_put(const TernaryLinear<Element>& job, int64_t row, int64_t column, int sum,
                            bool valid) {
  const int total = job.sums[row] - sum;
  const float scale = __fmul_rn(job.scales[row], job.scale[column * job.scale_stride]);
  float out = __fmul_rn(static_cast<float>(total), scale);
  if (job.bias) out = __fadd_rn(out, to_float(job.bias[column]));
  if (!valid) out = __uint_as_float(0x7fc00000u);
  job.out[row * job.n + column] = from_float<Element>(out);
}

/// `Rows` rows of x at a time; where fewer are left, the first of them stands in for the others and
/// what it gives is dropped. A column that meets a code of 11, or anything but zeros past k, is
/// NaN.
template <class Element, int Rows>
__global__ void ternary_linear(TernaryLinear<Element> job) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int64_t first = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const int64_t words = trit_words(job.k), stride = ternary_cuda_padded(job.k);
  for (int64_t row = int64_t{blockIdx.y} * Rows; row < job.rows; row += int64_t{gridDim.y} * Rows) {
    const int8_t* values[Rows];
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      values[r] = job.values + (row + r < job.rows ? row + r : row) * stride;
    }
    for (int64_t column = first; column < job.n; column += warps) {
      const uint32_t* packed = job.packed + column * words;
      int sums[Rows] = {};
      unsigned twos = 0;
#pragma unroll 4
      for (int64_t word = lane; word < words; word += 32) {
        const uint32_t codes = packed[word], digits = ternary_digits(codes);
        twos |= codes & codes >> 1 & kLowBits;
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
          const int4 four = reinterpret_cast<const int4*>(values[r])[word];
          sums[r] = __dp4a(ternary_bytes(digits, 0), four.x, sums[r]);
          sums[r] = __dp4a(ternary_bytes(digits, 1), four.y, sums[r]);
          sums[r] = __dp4a(ternary_bytes(digits, 2), four.z, sums[r]);
          sums[r] = __dp4a(ternary_bytes(digits, 3), four.w, sums[r]);
        }
      }
      if (lane == 0 && words > 0) twos |= ternary_past(packed[words - 1], job.k);
      const bool valid = !__any_sync(0xffffffffu, twos != 0);
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        for (int mask = 16; mask > 0; mask /= 2) {
          sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], mask);
        }
        if (lane == 0 && row + r < job.rows) ternary_put(job, row + r, column, sums[r], valid);
      }
    }
  }
}

/// The same with activations as they are; needs no ternary_prepare.
template <class Element, int Rows>
__global__ void ternary_linear_exact(TernaryLinear<Element> job) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int64_t first = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const int64_t words = trit_words(job.k);
  for (int64_t row = int64_t{blockIdx.y} * Rows; row < job.rows; row += int64_t{gridDim.y} * Rows) {
    const Element* x[Rows];
#pragma unroll
    for (int r = 0; r < Rows; ++r) x[r] = job.x + (row + r < job.rows ? row + r : row) * job.k;
    for (int64_t column = first; column < job.n; column += warps) {
      const uint32_t* packed = job.packed + column * words;
      float sums[Rows] = {};
      unsigned twos = 0;
      // A lane takes every 32nd trit, not every 32nd word, so that lanes read x side by side.
      for (int64_t i = lane; i < job.k; i += 32) {
        const unsigned code = packed[i / kTritsInWord] >> 2 * (i % kTritsInWord) & 3;
        twos |= code == 3;
        if (code == 0) continue;
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
          const float value = to_float(x[r][i]);
          sums[r] += code == 1 ? value : -value;
        }
      }
      if (lane == 0 && words > 0) twos |= ternary_past(packed[words - 1], job.k);
      const bool valid = !__any_sync(0xffffffffu, twos != 0);
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        for (int mask = 16; mask > 0; mask /= 2) {
          sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], mask);
        }
        if (lane == 0 && row + r < job.rows) {
          float out = sums[r] * job.scale[column * job.scale_stride];
          if (job.bias) out += to_float(job.bias[column]);
          if (!valid) out = __uint_as_float(0x7fc00000u);
          job.out[(row + r) * job.n + column] = from_float<Element>(out);
        }
      }
    }
  }
}

}  // namespace aegis::kernels::cuda
