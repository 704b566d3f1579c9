// What only the instrumented programs see: races, unwritten reads, accesses outside of buffers.
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/simt.cuh"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::simt {
namespace {

class RaceTest : public EverySchedule {
 protected:
  DeviceBuffer<int> out{"out", std::vector<int>(256)};
};
AEGIS_EVERY_SCHEDULE(RaceTest);

TEST_P(RaceTest, ThisProgramDetectsRaces) { EXPECT_TRUE(detects_races()); }

/// Each thread writes its cell and reads its neighbour's, with or without a barrier between.
__global__ void neighbour(int* out, int step, bool with_barrier, bool with_second) {
  AEGIS_SHARED(int, cells, [128]);
  cells[threadIdx.x] = threadIdx.x;
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = cells[(threadIdx.x + step) % blockDim.x];
  if (with_second) __syncthreads();
  cells[threadIdx.x] = 1;
}

TEST_P(RaceTest, ReadAndWriteNeedABarrierBetween) {
  DeviceBuffer<int> a("a", 128);
  launch({1, 128}, neighbour, a.data(), 0, false, false);
  launch({1, 128}, neighbour, a.data(), 1, true, true);
  EXPECT_SIMT_ERROR(launch({1, 128}, neighbour, a.data(), 1, false, true), "race: thread (");
  EXPECT_SIMT_ERROR(launch({1, 128}, neighbour, a.data(), 1, true, false),
                    "with no order between them since the barrier at test_races.cpp:");
  EXPECT_SIMT_ERROR(launch({1, 128}, neighbour, a.data(), 32, true, false), "cells[");
}

__global__ void all_write_one(bool same_thread) {
  AEGIS_SHARED(int, cell);
  if (!same_thread || threadIdx.x == 0) cell = 1;
}

TEST_P(RaceTest, TwoWritersRaceEvenWithEqualValues) {
  launch({1, 2}, all_write_one, true);
  EXPECT_SIMT_ERROR(launch({1, 2}, all_write_one, false), "writes cell[0], which thread (");
}

enum class Sync { none, warp, half, shuffle, vote };

__global__ void within_warp(int* out, Sync sync) {
  AEGIS_SHARED(int, cells, [32]);
  cells[threadIdx.x] = threadIdx.x;
  if (sync == Sync::warp) __syncwarp();
  if (sync == Sync::half) __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u);
  if (sync == Sync::shuffle) __shfl_sync(0xffffffffu, 1, 0);
  if (sync == Sync::vote) __ballot_sync(0xffffffffu, 1);
  out[threadIdx.x] = cells[threadIdx.x ^ 16];
}

TEST_P(RaceTest, OnlySyncwarpOrdersMemoryWithinAWarpAndOnlyItsLanes) {
  launch({1, 32}, within_warp, out.data(), Sync::warp);
  for (Sync sync : {Sync::none, Sync::half, Sync::shuffle, Sync::vote}) {
    EXPECT_SIMT_ERROR(launch({1, 32}, within_warp, out.data(), sync), "race: ");
  }
}

__global__ void chain(int* out) {
  AEGIS_SHARED(int, cell);
  if (threadIdx.x == 0) cell = 7;
  if (threadIdx.x < 2) __syncwarp(0x3);
  if (threadIdx.x == 1 || threadIdx.x == 2) __syncwarp(0x6);
  if (threadIdx.x == 2) out[0] = cell;
}

TEST_P(RaceTest, OrderPassesFromLaneToLane) {
  launch({1, 3}, chain, out.data());
  EXPECT_EQ(out.values()[0], 7);
}

__global__ void across_warps(int* out) {
  AEGIS_SHARED(int, cell);
  if (threadIdx.x == 0) cell = 7;
  __syncwarp();
  if (threadIdx.x == 32) out[0] = cell;
}

TEST_P(RaceTest, SyncwarpOrdersNothingBetweenWarps) {
  EXPECT_SIMT_ERROR(launch({1, 64}, across_warps, out.data()), "cell[0]");
}

__global__ void late_writer(int* out) {
  AEGIS_SHARED(int, cell);
  if (threadIdx.x == 0) cell = 7;
  __syncthreads();
  out[threadIdx.x] = cell;
  __syncwarp();
  if (threadIdx.x == 5) cell = 8;  // lanes of the first warp have met; the second's have not
}

TEST_P(RaceTest, AWriterMeetsReadersOfOtherWarps) {
  EXPECT_SIMT_ERROR(launch({1, 64}, late_writer, out.data()), "race: ");
  launch({1, 32}, late_writer, out.data());
}

__global__ void atomic_and_plain(int* out, bool plain) {
  AEGIS_SHARED(int, count);
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  if (!plain) __syncthreads();
  if (threadIdx.x == 1) out[0] = count;
}

TEST_P(RaceTest, AtomicsDoNotRaceWithEachOtherButWithPlainReads) {
  launch({1, 64}, atomic_and_plain, out.data(), false);
  EXPECT_EQ(out.values()[0], 64);
  EXPECT_SIMT_ERROR(launch({1, 64}, atomic_and_plain, out.data(), true), "count[0]");
}

__global__ void same_cell(int* out, bool by_block) { out[by_block ? blockIdx.x : 0] = 1; }

TEST_P(RaceTest, BlocksThatWriteOneAddressRace) {
  launch({3, 1}, same_cell, out.data(), true);
  EXPECT_SIMT_ERROR(launch({3, 1}, same_cell, out.data(), false),
                    "writes out[0], which another block has written");
}

__global__ void block_reads_block(int* out) {
  out[blockIdx.x] = 1;
  if (blockIdx.x == 1) out[10] = out[0];
}

TEST_P(RaceTest, ABlockThatReadsAnothersWritesRaces) {
  EXPECT_SIMT_ERROR(launch({2, 1}, block_reads_block, out.data()), "another block has ");
}

/// The block that comes last sums what all blocks left: ordered by a fence and an atomic.
__global__ void last_block_sums(int* parts, int* arrived, int* sum) {
  parts[blockIdx.x] = blockIdx.x + 1;
  __threadfence();
  if (atomicAdd(arrived, 1) == static_cast<int>(gridDim.x) - 1) {
    int total = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) total += parts[i];
    *sum = total;
  }
}

TEST_P(RaceTest, FenceAndAtomicOrderBlocks) {
  DeviceBuffer<int> parts("parts", 5), arrived("arrived", std::vector<int>{0}), sum("sum", 1);
  launch({5, 1}, last_block_sums, parts.data(), arrived.data(), sum.data());
  EXPECT_EQ(sum.values()[0], 15);
}

TEST_P(RaceTest, LaunchesAreOrdered) {
  launch({1, 1}, same_cell, out.data(), false);
  launch({1, 1}, same_cell, out.data(), false);
  EXPECT_EQ(out.values()[0], 1);
}

__global__ void read_shared(int* out, bool write_first) {
  AEGIS_SHARED(int, cell);
  if (write_first && blockIdx.x == gridDim.x - 1) cell = 1;
  out[blockIdx.x] = cell;
}
__global__ void copy_one(const int* in, int* out) { out[0] = in[0]; }

TEST_P(RaceTest, UnwrittenMemoryIsNotRead) {
  launch({1, 1}, read_shared, out.data(), true);
  EXPECT_SIMT_ERROR(launch({1, 1}, read_shared, out.data(), false), "unwritten: thread (0,0,0)");
  EXPECT_SIMT_ERROR(launch({2, 1}, read_shared, out.data(), true), "reads cell[0], which nothing");
  DeviceBuffer<int> fresh("fresh", 1);
  EXPECT_SIMT_ERROR(launch({1, 1}, copy_one, fresh.data(), out.data()), "reads fresh[0]");
  launch({1, 1}, copy_one, out.data(), fresh.data());
  launch({1, 1}, copy_one, fresh.data(), out.data());
}

__global__ void read_at(const int* in, int* out, int index) { out[0] = in[index]; }
__global__ void shared_at(int* out, int index) {
  AEGIS_SHARED(int, cells, [4]);
  AEGIS_SHARED(int, others, [4]);
  cells[threadIdx.x] = others[threadIdx.x] = 1;
  __syncthreads();
  const int* all = cells;
  out[threadIdx.x] = all[index];
}

TEST_P(RaceTest, ReadsOutsideOfBuffersAreFound) {
  DeviceBuffer<int> in("in", std::vector<int>(5, 1));
  EXPECT_SIMT_ERROR(
      launch({1, 1}, read_at, in.data(), out.data(), 5),
      "outside: thread (0,0,0) of block (0,0,0) reads in[5] (4 bytes), of 5 elements");
  EXPECT_SIMT_ERROR(launch({1, 1}, read_at, in.data(), out.data(), -2), "reads in[-2]");
  launch({1, 4}, shared_at, out.data(), 3);
  EXPECT_SIMT_ERROR(launch({1, 4}, shared_at, out.data(), 4), "reads cells[4]");
}

__global__ void read_pair(const uint16_t* in, int* out) {
  out[0] = static_cast<int>(*reinterpret_cast<const uint32_t*>(in));
}

TEST_P(RaceTest, MisalignedAccessesAreFound) {
  DeviceBuffer<uint16_t> in("in", std::vector<uint16_t>(4, 1)),
      shifted("in", std::vector<uint16_t>(4, 1), 1);
  launch({1, 1}, read_pair, in.data(), out.data());
  EXPECT_SIMT_ERROR(launch({1, 1}, read_pair, shifted.data(), out.data()),
                    "misaligned: thread (0,0,0) of block (0,0,0) reads 4 bytes at in[0]");
}

}  // namespace
}  // namespace aegis::simt
