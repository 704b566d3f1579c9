// float8_linear for many rows on SM100 (compute capability 10.0 and 10.3): the arithmetic of its
// tiles, which the host can test, and the launcher. As on SM90, matrices come by TMA in pieces of
// kTileK = 128 bytes a row, swizzled; tcgen05 multiplies them into tensor memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/tma.h"
#include "kernels/float8_linear.h"

struct CUstream_st;

namespace aegis::kernels::cuda::sm100 {

constexpr int kM = 128;       ///< rows of x in a tile: the lanes of tensor memory
constexpr int kN = 128;       ///< rows of weights in it: columns of tensor memory
constexpr int kStepK = 32;    ///< values that one tcgen05.mma takes of each row
constexpr int kStages = 4;    ///< pieces of both matrices in shared memory
constexpr int kSums = 2;      ///< in tensor memory: one is read while the next piece is multiplied
constexpr int kSumWarps = 4;  ///< each reads 32 lanes of tensor memory, which are all it may
constexpr int kCopyWarp = kSumWarps, kMultiplyWarp = kSumWarps + 1;
constexpr int kThreads = 32 * (kMultiplyWarp + 1);
constexpr int kTogether = 32;  ///< columns that a thread reads at once

constexpr int kBytesA = kM * kTileK, kBytesB = kN * kTileK;
constexpr int kStageBytes = kBytesA + kBytesB;
/// Columns of tensor memory to ask for: a power of 2, at least 32 and at most 512.
constexpr uint32_t kTensorColumns = kSums * kN;

/// Floats between rows in shared memory, where a warp turns its 32 rows of results so that lanes
/// write neighbours: odd, so that lanes meet no bank twice.
constexpr int kTurnStride = kN + 1;
constexpr int kTurnBytes = kSumWarps * 32 * kTurnStride * 4;
static_assert(kTurnBytes <= kStages * kStageBytes, "turned where the stages were");

/// What follows the stages in shared memory.
struct Tail {
  float scales[kSumWarps][kN];  ///< of the piece's weights; each warp has its own
  uint64_t full[kStages];       ///< barriers: the piece has come
  uint64_t empty[kStages];      ///< it has been multiplied
  uint64_t summed[kSums];       ///< all products of a piece are in the sums
  uint64_t read[kSums];         ///< the sums have been read
  uint32_t tensor_memory;       ///< address of the sums
};
/// With room to align the stages to 1,024 bytes.
constexpr int kSharedBytes = 1024 + kStages * kStageBytes + static_cast<int>(sizeof(Tail));

/// Which of `slots` things piece `k` uses, and the parity of the phase in which its barrier is
/// filled. Who empties slots waits for that parity, who fills them for the other: on a new barrier
/// that wait is over at once.
struct Turn {
  int slot;
  unsigned parity;
};

AEGIS_HOST_DEVICE constexpr Turn turn(int64_t k, int slots) {
  return {static_cast<int>(k % slots), static_cast<unsigned>(k / slots % 2)};
}

/// The instruction descriptor of tcgen05.mma for kind::f8f6f4 (PTX ISA, "Instruction descriptor"):
/// float32 += E4M3 · E4M3, dense, both operands K-major, kM × kN.
AEGIS_HOST_DEVICE constexpr uint32_t instruction_descriptor() {
  constexpr uint32_t kFloat32 = 1, kE4m3 = 0;
  return kFloat32 << 4 | kE4m3 << 7 | kE4m3 << 10 | uint32_t{kN >> 3} << 17 |
         uint32_t{kM >> 4} << 24;
}

/// The descriptor of a K-major operand in shared memory with the 128-byte swizzle, from the byte
/// address of its first element on (PTX ISA, "Shared memory descriptor" of tcgen05; not that of
/// WGMMA): addresses and strides in units of 16 bytes. Groups of eight rows lie 1,024 bytes apart;
/// the other stride is not used.
AEGIS_HOST_DEVICE constexpr uint64_t operand_descriptor(uint32_t address) {
  constexpr uint64_t kUnused = 1, kRowGroup = 1024 >> 4, kFixed = 1, kSwizzle128 = 2;
  return uint64_t{address >> 4 & 0x3fff} | kUnused << 16 | kRowGroup << 32 | kFixed << 46 |
         kSwizzle128 << 61;
}

/// The address in tensor memory of a column of sums, from the first lane that `warp` may read on:
/// lanes in the upper half of the word, columns in the lower. Row r of a tile lies in lane r.
AEGIS_HOST_DEVICE constexpr uint32_t sum_address(uint32_t base, int warp, int slot, int column) {
  return base + (static_cast<uint32_t>(warp) * 32 << 16) +
         static_cast<uint32_t>(slot * kN + column);
}

/// The newest compute capability that the kernel was built for: 103, 100, or 0 for none.
int newest_built();

/// As cuda::launch_float8_tiles.
void launch_float8_tiles(const Float8Linear& job, CUstream_st* stream);

}  // namespace aegis::kernels::cuda::sm100
