// float8_linear for many rows on SM100. What only hardware runs sits in tma.cuh and tcgen05.cuh;
// tile, index and scale arithmetic in float8_tiles_sm100.h.
//
// One warp copies, one multiplies, and four add what was multiplied: each piece of 128 products is
// summed by itself and added, with its scales where they come in blocks, to float32 sums in
// registers (two-level accumulation: DeepSeek-V3, 2024), while the next piece is multiplied.
#pragma once

#include <cstdint>

#include "kernels/cuda/float8_put.cuh"
#include "kernels/cuda/float8_tiles.h"
#include "kernels/cuda/float8_tiles_sm100.h"
#include "kernels/cuda/simt.cuh"
#include "kernels/cuda/tcgen05.cuh"

namespace aegis::kernels::cuda::sm100 {

#ifdef AEGIS_TCGEN05

__device__ inline void copy_pieces(int64_t pieces, TilePlace place, unsigned char* stages,
                                   Tail& tail, const CUtensorMap& x_map,
                                   const CUtensorMap& weight_map) {
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const auto [slot, parity] = turn(piece, kStages);
    unsigned char* const to = stages + slot * kStageBytes;
    const auto column = static_cast<int32_t>(piece * kTileK);
    barrier_wait(&tail.empty[slot], parity ^ 1);
    // What lies outside of a matrix arrives as zeros, and counts.
    barrier_expect(&tail.full[slot], kStageBytes);
    load_tile(x_map, to, &tail.full[slot], column, static_cast<int32_t>(place.row));
    load_tile(weight_map, to + kBytesA, &tail.full[slot], column,
              static_cast<int32_t>(place.column));
  }
}

__device__ inline void multiply_pieces(int64_t pieces, const unsigned char* stages, Tail& tail) {
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const Turn stage = turn(piece, kStages), sum = turn(piece, kSums);
    barrier_wait(&tail.read[sum.slot], sum.parity ^ 1);
    barrier_wait(&tail.full[stage.slot], stage.parity);
    tensor_fence_after();
    const uint32_t a = shared_address(stages) + stage.slot * kStageBytes;
    const uint32_t to = sum_address(tail.tensor_memory, 0, sum.slot, 0);
#pragma unroll
    for (int k = 0; k < kTileK; k += kStepK) {
      tensor_multiply(to, operand_descriptor(a + k), operand_descriptor(a + kBytesA + k),
                      instruction_descriptor(), k == 0);
    }
    tensor_commit(&tail.empty[stage.slot]);
    tensor_commit(&tail.summed[sum.slot]);
  }
}

/// By the four warps: adds up the pieces of row threadIdx.x of the tile and writes the results.
__device__ inline void add_pieces(const Float8Linear& job, int64_t pieces, TilePlace place,
                                  unsigned char* stages, Tail& tail) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool blocks = job.group == kFloat8Block;
  const int64_t row = place.row + threadIdx.x;
  float* const scales = tail.scales[warp];
  const auto fetch_scales = [&](int64_t group) {
#pragma unroll
    for (int i = lane; i < kN; i += 32) {
      const int64_t column = place.column + i;
      scales[i] = column < job.n ? job.weight_scale[column * job.groups + group] : 0.0f;
    }
    __syncwarp();
    return row < job.rows ? job.x_scale[row * job.groups + group] : 0.0f;
  };

  float totals[kN] = {};
  float x_scale = fetch_scales(0);
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const auto [slot, parity] = turn(piece, kSums);
    if (blocks && piece > 0) x_scale = fetch_scales(piece);
    barrier_wait(&tail.summed[slot], parity);
    __syncwarp();
    tensor_fence_after();
#pragma unroll
    for (int column = 0; column < kN; column += kTogether) {
      float sums[kTogether];
      tensor_read(sums, sum_address(tail.tensor_memory, warp, slot, column));
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        totals[column + i] += blocks ? sums[i] * (x_scale * scales[column + i]) : sums[i];
      }
    }
    tensor_fence_before();
    __syncwarp();  // all lanes have read sums and scales
    if (lane == 0) barrier_arrive(&tail.read[slot]);
  }

  // All products are done, so nobody else uses the stages.
  float* const turned = reinterpret_cast<float*>(stages) + warp * 32 * kTurnStride;
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    turned[lane * kTurnStride + i] = blocks ? totals[i] : totals[i] * (x_scale * scales[i]);
  }
  __syncwarp();
  for (int r = 0; r < 32; ++r) {
    const int64_t to = place.row + warp * 32 + r;
    if (to >= job.rows) break;
    for (int i = lane; i < kN && place.column + i < job.n; i += 32) {
      float8_put(job, to, place.column + i, turned[r * kTurnStride + i]);
    }
  }
}

#endif

/// Needs kSharedBytes of dynamic shared memory and compute capability 10.0 or 10.3, built for it;
/// does nothing otherwise, and is not launched then (newest_built).
__global__ void __launch_bounds__(kThreads)
    float8_tiles_sm100(Float8Linear job, const __grid_constant__ CUtensorMap x_map,
                       const __grid_constant__ CUtensorMap weight_map) {
#ifdef AEGIS_TCGEN05
  AEGIS_DYNAMIC_SHARED(unsigned char, shared);
  unsigned char* const stages = shared + (-shared_address(shared) & 1023u);
  Tail& tail = *reinterpret_cast<Tail*>(stages + kStages * kStageBytes);
  const TilePlace place = tile_place(blockIdx.x, job.rows, kM, kN);
  const int64_t pieces = tile_count(job.k, kTileK);
  const int warp = threadIdx.x / 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(&tail.full[i], 1);
    for (int i = 0; i < kStages; ++i) barrier_init(&tail.empty[i], 1);
    for (int i = 0; i < kSums; ++i) barrier_init(&tail.summed[i], 1);
    for (int i = 0; i < kSums; ++i) barrier_init(&tail.read[i], kSumWarps);
    barriers_ready();
  }
  if (warp == kMultiplyWarp) tensor_memory_take(&tail.tensor_memory, kTensorColumns);
  tensor_fence_before();
  __syncthreads();
  tensor_fence_after();

  if (warp < kSumWarps) {
    add_pieces(job, pieces, place, stages, tail);
  } else if (one_lane()) {
    if (warp == kCopyWarp) {
      copy_pieces(pieces, place, stages, tail, x_map, weight_map);
    } else {
      multiply_pieces(pieces, stages, tail);
    }
  }
  __syncwarp();
  tensor_fence_before();
  __syncthreads();
  if (warp == kMultiplyWarp) {
    tensor_fence_after();
    tensor_memory_give_back(tail.tensor_memory, kTensorColumns);
  }
#else
  (void)job;
  (void)x_map;
  (void)weight_map;
#endif
}

}  // namespace aegis::kernels::cuda::sm100
