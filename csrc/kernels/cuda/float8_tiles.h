// float8_linear for many rows on SM90: the arithmetic of its tiles, which the host can test, and
// the launcher. A block computes kTileM rows × kTileN columns; matrices come by TMA in pieces of
// kTileK = 128 bytes a row, swizzled, and are multiplied by WGMMA.
#pragma once

#include <cstdint>

#include "kernels/cuda/tma.h"
#include "kernels/float8_linear.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

constexpr int kTileM = 64;  ///< rows of x
constexpr int kTileN = 64;  ///< rows of weights
constexpr int kTileStages = 4;
constexpr int kTileThreads = 128;  ///< one warp group
constexpr int kTileStepK = 32;     ///< values that one WGMMA takes of each row
constexpr int kTileSums = kTileM * kTileN / kTileThreads;  ///< of a thread
constexpr int kTileBytesA = kTileM * kTileK, kTileBytesB = kTileN * kTileK;
constexpr int kTileStageBytes = kTileBytesA + kTileBytesB;
/// The stages, aligned to 1,024 bytes within what the launch gives, and their barriers.
constexpr int kTileSharedBytes = kTileStages * kTileStageBytes + 1024 + 8 * kTileStages;

/// Which tile a block computes. Neighbouring blocks share weights: rows of x go fastest.
struct TilePlace {
  int64_t row;     ///< of x
  int64_t column;  ///< of the result
};

AEGIS_HOST_DEVICE constexpr TilePlace tile_place(int64_t block, int64_t rows,
                                                 int tile_rows = kTileM,
                                                 int tile_columns = kTileN) {
  const int64_t down = tile_count(rows, tile_rows);
  return {block % down * tile_rows, block / down * tile_columns};
}

/// WGMMA's descriptor of a K-major operand in shared memory with that swizzle, from the byte
/// address of its first element on (PTX ISA, "Matrix descriptor"): addresses and strides in units
/// of 16 bytes. Groups of eight rows lie 1,024 bytes apart; the other stride is not used.
AEGIS_HOST_DEVICE constexpr uint64_t tile_descriptor(uint32_t address) {
  constexpr uint64_t kUnused = 1, kRowGroup = 1024 >> 4, kSwizzle128 = 1;
  return uint64_t{address >> 4 & 0x3fff} | kUnused << 16 | kRowGroup << 32 | kSwizzle128 << 62;
}

/// The place within the tile of sum `i` of `thread`: the accumulator layout of m64nNk32.
struct TileSum {
  int row;
  int column;
};

AEGIS_HOST_DEVICE constexpr TileSum tile_sum(int thread, int i) {
  const int warp = thread / 32, lane = thread % 32;
  return {warp * 16 + lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

/// The stage that piece `k` of a row passes through, and the parity of its barrier's phase then.
AEGIS_HOST_DEVICE constexpr int tile_stage(int64_t k) { return static_cast<int>(k % kTileStages); }
AEGIS_HOST_DEVICE constexpr unsigned tile_parity(int64_t k) {
  return static_cast<unsigned>(k / kTileStages % 2);
}

/// Whether launch_float8_tiles takes the job.
inline bool float8_tiles_take(const Float8Linear& job) {
  return tile_map_fits(job.x, job.rows, job.k, job.k) &&
         tile_map_fits(job.weight, job.n, job.k, job.weight_stride) &&
         tile_count(job.rows, kTileM) * tile_count(job.n, kTileN) < int64_t{1} << 31;
}

/// 90 for a device of compute capability 9.0.
int compute_capability(int device);

/// Whether this library has a kernel of tiles for GPUs of that compute capability: for 9.0 this one
/// (built for 90a), for 10.0 and 10.3 float8_tiles_sm100.
bool float8_tiles_built(int capability);

/// Queues the kernel of tiles for that compute capability, which was built, on `stream`. `x` is
/// (rows, k) E4M3 values, row-major, of any number of rows; the job is one that float8_tiles_take.
/// Throws std::runtime_error where the driver refuses.
void launch_float8_tiles(const Float8Linear& job, int capability, CUstream_st* stream);

}  // namespace aegis::kernels::cuda
