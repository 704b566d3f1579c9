// int8 matrix times int8 vector: a warp a row, sixteen products a load, then the tail.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.cuh"

namespace aegis::simt::examples {

__device__ inline int dot16(const int4& a, const int4& b, int sum) {
  sum = __dp4a(a.x, b.x, sum);
  sum = __dp4a(a.y, b.y, sum);
  sum = __dp4a(a.z, b.z, sum);
  return __dp4a(a.w, b.w, sum);
}

/// `weights` is (rows, columns), `vector` (columns). Vector loads where every row is aligned to 16
/// bytes, single bytes elsewhere.
__global__ void gemv(const int8_t* weights, const int8_t* vector, int rows, int columns, int* out) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // whole warps: the block's size is a multiple of 32
  const int8_t* mine = weights + static_cast<int64_t>(row) * columns;
  const auto address = reinterpret_cast<uintptr_t>(mine) | reinterpret_cast<uintptr_t>(vector);
  const int quads = address % 16 == 0 ? columns / 16 : 0;
  int sum = 0;
  for (int i = lane; i < quads; i += 32) {
    sum = dot16(__ldg(reinterpret_cast<const int4*>(mine) + i),
                __ldg(reinterpret_cast<const int4*>(vector) + i), sum);
  }
  for (int i = quads * 16 + lane; i < columns; i += 32) sum += mine[i] * vector[i];
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (lane == 0) out[row] = sum;
}

}  // namespace aegis::simt::examples
