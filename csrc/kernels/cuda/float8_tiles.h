// float8_linear for many rows on SM90: the arithmetic of its tiles, which the host can test, and
// the launcher. A block computes kTileM rows × kTileN columns; matrices come by TMA in pieces of
// kTileK = 128 bytes a row, swizzled, and are multiplied by WGMMA.
#pragma once

#include <cstdint>

#include "kernels/float8_linear.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

constexpr int kTileM = 64;   ///< rows of x
constexpr int kTileN = 64;   ///< rows of weights
constexpr int kTileK = 128;  ///< E4M3 values of each: one group where scales come in blocks
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

AEGIS_HOST_DEVICE constexpr int64_t tile_count(int64_t items, int64_t tile) {
  return (items + tile - 1) / tile;
}

AEGIS_HOST_DEVICE constexpr TilePlace tile_place(int64_t block, int64_t rows) {
  const int64_t down = tile_count(rows, kTileM);
  return {block % down * kTileM, block / down * kTileN};
}

/// Where TMA's 128-byte swizzle puts byte `offset` of a tile with rows of 128 bytes that begins at
/// a multiple of 1,024: the eight 16-byte chunks of a row are exclusive-ored with the row's number.
AEGIS_HOST_DEVICE constexpr uint32_t tile_swizzled(uint32_t offset) {
  return offset ^ ((offset >> 7 & 7) << 4);
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

/// What cuTensorMapEncodeTiled is told of a row-major matrix of bytes. FP8 travels as UINT8.
struct TileMap {
  uint64_t sizes[2];    ///< columns, rows
  uint64_t strides[1];  ///< bytes from row to row
  uint32_t box[2];      ///< columns and rows of a tile
};

constexpr TileMap tile_map(int64_t rows, int64_t k, int64_t stride, int box_rows) {
  return {{static_cast<uint64_t>(k), static_cast<uint64_t>(rows)},
          {static_cast<uint64_t>(stride)},
          {kTileK, static_cast<uint32_t>(box_rows)}};
}

/// Whether TMA can read such a matrix: 16-byte alignment, strides below 2⁴⁰, and coordinates that
/// are 32-bit integers.
inline bool tile_map_fits(const void* address, int64_t rows, int64_t k, int64_t stride) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0 && stride % 16 == 0 && k > 0 && rows > 0 &&
         stride >= k && k < int64_t{1} << 31 && rows < int64_t{1} << 31 &&
         stride < int64_t{1} << 40;
}

/// Whether launch_float8_tiles takes the job (on a GPU of compute capability 9.0).
inline bool float8_tiles_take(const Float8Linear& job) {
  return tile_map_fits(job.x, job.rows, job.k, job.k) &&
         tile_map_fits(job.weight, job.n, job.k, job.weight_stride) &&
         tile_count(job.rows, kTileM) * tile_count(job.n, kTileN) < int64_t{1} << 31;
}

/// Whether this library was built for 90a; without, the kernel has no code.
bool float8_tiles_built();

/// 90 for a device of compute capability 9.0.
int compute_capability(int device);

/// Queues the kernel, which was built, on `stream`. `x` is (rows, k) E4M3 values, row-major, of any
/// number of rows; the job is one that float8_tiles_take. Throws std::runtime_error where the
/// driver refuses.
void launch_float8_tiles(const Float8Linear& job, CUstream_st* stream);

}  // namespace aegis::kernels::cuda
