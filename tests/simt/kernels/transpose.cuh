// A matrix transposed tile by tile through dynamic shared memory.
#pragma once

#include <cstddef>

#include "kernels/cuda/simt.cuh"

namespace aegis::simt::examples {

constexpr int kTile = 32, kTileRows = 8;

/// A column more than the tile has, against bank conflicts.
template <class T>
constexpr size_t transpose_shared_bytes() {
  return kTile * (kTile + 1) * sizeof(T);
}

/// `in` is (rows, columns), `out` (columns, rows). Block (kTile, kTileRows), grid
/// (ceil(columns / kTile), ceil(rows / kTile)).
template <class T>
__global__ void transpose(const T* in, int rows, int columns, T* out) {
  AEGIS_DYNAMIC_SHARED(T, tile);
  const int left = blockIdx.x * kTile, top = blockIdx.y * kTile;
  const int x = threadIdx.x;
  for (int y = threadIdx.y; y < kTile; y += kTileRows) {
    if (top + y < rows && left + x < columns) {
      tile[y * (kTile + 1) + x] = in[(top + y) * columns + left + x];
    }
  }
  __syncthreads();
  for (int y = threadIdx.y; y < kTile; y += kTileRows) {
    if (left + y < columns && top + x < rows) {
      out[(left + y) * rows + top + x] = tile[x * (kTile + 1) + y];
    }
  }
}

}  // namespace aegis::simt::examples
