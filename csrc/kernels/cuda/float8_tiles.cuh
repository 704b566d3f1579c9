// float8_linear for many rows on SM90. What only hardware runs sits in the wrappers; tile, index
// and scale arithmetic in float8_tiles.h.
//
// Tensor cores keep about 14 bits of an FP8 sum. So each piece of 128 products is summed by itself
// and added, scaled, to float32 sums in registers (two-level accumulation: DeepSeek-V3, 2024).
#pragma once

#include <cstdint>

#include "kernels/cuda/float8_put.cuh"
#include "kernels/cuda/float8_tiles.h"
#include "kernels/cuda/simt.cuh"
#include "kernels/cuda/tma.cuh"

namespace aegis::kernels::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace sm90 {

__device__ inline void products_begin(float (&sums)[kTileSums]) {
#pragma unroll
  for (int i = 0; i < kTileSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Waits for all products; the sums are in registers then.
__device__ inline void products_end(float (&sums)[kTileSums]) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kTileSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

/// sums = a · bᵀ of 32 values of each row, added to what was there unless `fresh`.
__device__ inline void multiply(float (&d)[kTileSums], uint64_t a, uint64_t b, bool fresh) {
  static_assert(kTileM == 64 && kTileN == 64 && kTileStepK == 32 && kTileSums == 32);
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, add, 1, 1;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(static_cast<int>(!fresh)));
}

}  // namespace sm90

#endif

/// Needs kTileSharedBytes of dynamic shared memory and compute capability 9.0, built for 90a; does
/// nothing otherwise, and is not launched then (float8_tiles_capability).
__global__ void __launch_bounds__(kTileThreads)
    float8_tiles(Float8Linear job, const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ CUtensorMap weight_map) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  AEGIS_DYNAMIC_SHARED(unsigned char, shared);
  const uint32_t skip = -shared_address(shared) & 1023u;
  unsigned char* const stages = shared + skip;
  auto* const barriers = reinterpret_cast<uint64_t*>(stages + kTileStages * kTileStageBytes);
  const TilePlace place = tile_place(blockIdx.x, job.rows);
  const int64_t pieces = tile_count(job.k, kTileK);
  const int thread = threadIdx.x;

  const auto load = [&](int64_t piece) {
    const int stage = tile_stage(piece);
    unsigned char* const to = stages + stage * kTileStageBytes;
    const auto column = static_cast<int32_t>(piece * kTileK);
    // What lies outside of a matrix arrives as zeros, and counts.
    barrier_expect(&barriers[stage], kTileStageBytes);
    load_tile(x_map, to, &barriers[stage], column, static_cast<int32_t>(place.row));
    load_tile(weight_map, to + kTileBytesA, &barriers[stage], column,
              static_cast<int32_t>(place.column));
  };
  if (thread == 0) {
    for (int stage = 0; stage < kTileStages; ++stage) barrier_init(&barriers[stage], 1);
    barriers_ready();
  }
  __syncthreads();
  if (thread == 0) {
    for (int64_t piece = 0; piece < pieces && piece < kTileStages; ++piece) load(piece);
  }

  const bool blocks = job.group == kFloat8Block;
  float totals[kTileSums] = {};
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int stage = tile_stage(piece);
    barrier_wait(&barriers[stage], tile_parity(piece));
    __syncwarp();  // thread 0 may have come by another way, and WGMMA wants whole warps
    const uint32_t a = shared_address(stages + stage * kTileStageBytes);
    float sums[kTileSums] = {};
    sm90::products_begin(sums);
#pragma unroll
    for (int k = 0; k < kTileK; k += kTileStepK) {
      sm90::multiply(sums, tile_descriptor(a + k), tile_descriptor(a + kTileBytesA + k), k == 0);
    }
    sm90::products_end(sums);
    __syncthreads();  // all have read the stage
    if (thread == 0 && piece + kTileStages < pieces) load(piece + kTileStages);

    const int64_t group = blocks ? piece : 0;
#pragma unroll
    for (int i = 0; i < kTileSums; ++i) {
      const TileSum at = tile_sum(thread, i);
      const int64_t row = place.row + at.row, column = place.column + at.column;
      if (row < job.rows && column < job.n) {
        totals[i] += sums[i] * (job.x_scale[row * job.groups + group] *
                                job.weight_scale[column * job.groups + group]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kTileSums; ++i) {
    const TileSum at = tile_sum(thread, i);
    const int64_t row = place.row + at.row, column = place.column + at.column;
    if (row < job.rows && column < job.n) float8_put(job, row, column, totals[i]);
  }
#else
  (void)job;
  (void)x_map;
  (void)weight_map;
#endif
}

}  // namespace aegis::kernels::cuda
