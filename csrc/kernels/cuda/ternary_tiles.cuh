// ternary_linear on the GPU for many rows: a block unpacks a piece of its weights once for all rows
// of its tile, and tensor cores multiply.
#pragma once

#include <cstdint>

#include "kernels/cuda/mma_s8.cuh"
#include "kernels/cuda/simt.cuh"
#include "kernels/cuda/ternary_linear.cuh"

namespace aegis::kernels::cuda {

constexpr int kTernaryTile = 64;      // rows and columns of the result
constexpr int kTernaryTileWords = 8;  // words of weights at a time: 128 bytes of digits
constexpr int kTernaryTileWarp = 32;  // rows and columns of a warp: four warps make a tile
constexpr int kTernaryTileLoads = kTernaryTile * kTernaryTileWords / kTernaryThreads;
/// Ints between rows of a piece: lanes of one mma meet no bank twice.
constexpr int kTernaryTileStride = kTernaryTileWords * 4 + 4;

/// A piece of both operands on its way to shared memory: thread i holds words i % 8 of rows i / 8,
/// i / 8 + 16 ... of the tile.
struct TernaryPiece {
  int4 values[kTernaryTileLoads];
  uint32_t codes[kTernaryTileLoads];

  /// What lies outside counts as zeros.
  template <class Element>
  __device__ void fetch(const TernaryLinear<Element>& job, int64_t row, int64_t column,
                        int64_t first) {
    const int64_t words = trit_words(job.k), word = first + threadIdx.x % kTernaryTileWords;
#pragma unroll
    for (int i = 0; i < kTernaryTileLoads; ++i) {
      const int at = (threadIdx.x + i * kTernaryThreads) / kTernaryTileWords;
      values[i] = make_int4(0, 0, 0, 0);
      codes[i] = 0;
      if (word >= words) continue;
      if (row + at < job.rows) {
        const int8_t* from = job.values + (row + at) * ternary_cuda_padded(job.k);
        values[i] = reinterpret_cast<const int4*>(from)[word];
      }
      if (column + at >= job.n) continue;
      codes[i] = job.packed[(column + at) * words + word];
      // Where no value is anything but zero, a code of 11 does no more than say so.
      if (word == words - 1 && ternary_past(codes[i], job.k) != 0) codes[i] |= 3u << 30;
    }
  }

  /// Writes both, weights as digits; bit i of `twos` is set where row i of them has a code of 11.
  __device__ void store(int* x, int* weights, unsigned& twos) const {
#pragma unroll
    for (int i = 0; i < kTernaryTileLoads; ++i) {
      const int load = threadIdx.x + i * kTernaryThreads;
      const int at = load / kTernaryTileWords * kTernaryTileStride + load % kTernaryTileWords * 4;
      const uint32_t high = codes[i] >> 1;
      if (codes[i] & high & kLowBits) twos |= 1u << i;
      const uint32_t digits = ternary_digits(codes[i]);
      *reinterpret_cast<int4*>(x + at) = values[i];
      *reinterpret_cast<int4*>(weights + at) =
          make_int4(ternary_bytes(digits, 0), ternary_bytes(digits, 1), ternary_bytes(digits, 2),
                    ternary_bytes(digits, 3));
    }
  }
};

/// Adds the products of a piece to the sums of the warp's part, which begins at these rows.
__device__ inline void ternary_tile_multiply(int (&sums)[2][4][4], const int* x,
                                             const int* weights) {
  const int lane = threadIdx.x % 32;
  x += lane / 4 * kTernaryTileStride + lane % 4;
  weights += lane / 4 * kTernaryTileStride + lane % 4;
#pragma unroll
  for (int k = 0; k < kTernaryTileWords * 4; k += 8) {
    int a[2][4], b[4][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        a[i][part] = x[(i * 16 + part % 2 * 8) * kTernaryTileStride + k + part / 2 * 4];
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        b[j][part] = weights[j * 8 * kTernaryTileStride + k + part * 4];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) mma_s8(sums[i][j], a[i], b[j]);
    }
  }
}

/// After ternary_prepare; the same bits as ternary_linear. Tiles that share weights lie side by
/// side: rows go fastest.
template <class Element>
__global__ void ternary_tiles(TernaryLinear<Element> job) {
  constexpr int kPiece = kTernaryTile * kTernaryTileStride;
  AEGIS_SHARED(int, x, [2 * kPiece]);
  AEGIS_SHARED(int, weights, [2 * kPiece]);
  AEGIS_SHARED(int, valid, [kTernaryTile]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int my_row = warp / 2 * kTernaryTileWarp, my_column = warp % 2 * kTernaryTileWarp;
  const int64_t down = (job.rows + kTernaryTile - 1) / kTernaryTile;
  const int64_t tiles = down * ((job.n + kTernaryTile - 1) / kTernaryTile);
  const int64_t words = trit_words(job.k);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row = tile % down * kTernaryTile, column = tile / down * kTernaryTile;
    int sums[2][4][4] = {};
    unsigned twos = 0;
    TernaryPiece piece;
    piece.fetch(job, row, column, 0);
    int now = 0;
    for (int64_t word = 0; word < words; word += kTernaryTileWords) {
      piece.store(x + now * kPiece, weights + now * kPiece, twos);
      __syncthreads();  // and all are done with what the next store writes over
      piece.fetch(job, row, column, word + kTernaryTileWords);
      ternary_tile_multiply(sums, x + now * kPiece + my_row * kTernaryTileStride,
                            weights + now * kPiece + my_column * kTernaryTileStride);
      now ^= 1;
    }
    for (int mask = 1; mask < kTernaryTileWords; mask *= 2) {
      twos |= __shfl_xor_sync(0xffffffffu, twos, mask);
    }
    if (threadIdx.x % kTernaryTileWords == 0) {
#pragma unroll
      for (int i = 0; i < kTernaryTileLoads; ++i) {
        valid[(threadIdx.x + i * kTernaryThreads) / kTernaryTileWords] = (twos >> i & 1) == 0;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          const int r = my_row + i * 16 + lane / 4 + part / 2 * 8;
          const int c = my_column + j * 8 + lane % 4 * 2 + part % 2;
          if (row + r < job.rows && column + c < job.n) {
            ternary_put(job, row + r, column + c, sums[i][j][part], valid[c] != 0);
          }
        }
      }
    }
    __syncthreads();  // before the next tile writes what this one reads
  }
}

}  // namespace aegis::kernels::cuda
