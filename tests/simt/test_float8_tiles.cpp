// The arithmetic of float8_linear's tiles on SM90. TMA and WGMMA are played by the host as the PTX
// ISA describes them: copies with swizzle and zero fill, operands read through descriptors, sums in
// the registers of the threads that tile_sum names.
#include "kernels/cuda/float8_tiles.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>
#include <vector>

#include "simt/float8_job.h"
#include "simt/played_tma.h"

namespace aegis::kernels::cuda {
namespace {

TEST(Float8TilesTest, SwizzleMovesWholeChunksWithinEightRows) {
  std::set<uint32_t> places;
  for (uint32_t offset = 0; offset < kTileBytesA; ++offset) {
    const uint32_t place = tile_swizzled(offset);
    EXPECT_EQ(place / 128, offset / 128);  // the row stays
    EXPECT_EQ(place % 16, offset % 16);    // chunks stay whole
    EXPECT_EQ(place / 16 % 8, (offset / 16 % 8) ^ (offset / 128 % 8));
    places.insert(place);
  }
  EXPECT_EQ(places.size(), static_cast<size_t>(kTileBytesA));
  // A column of chunks lies in eight different groups of banks.
  for (uint32_t chunk = 0; chunk < 8; ++chunk) {
    std::set<uint32_t> banks;
    for (uint32_t row = 0; row < 8; ++row)
      banks.insert(tile_swizzled(row * 128 + chunk * 16) % 128);
    EXPECT_EQ(banks.size(), 8u);
  }
}

TEST(Float8TilesTest, DescriptorFields) {
  const uint64_t d = tile_descriptor(0x12340);
  EXPECT_EQ(d & 0x3fff, 0x1234u);    // start / 16
  EXPECT_EQ(d >> 16 & 0x3fff, 1u);   // leading offset, unused
  EXPECT_EQ(d >> 32 & 0x3fff, 64u);  // 1,024 bytes from eight rows to the next
  EXPECT_EQ(d >> 49 & 7, 0u);        // base offset: tiles begin at multiples of 1,024
  EXPECT_EQ(d >> 62, 1u);            // 128-byte swizzle
  EXPECT_EQ(tile_descriptor(0x3ffff) & 0x3fff, 0x3fffu);
  EXPECT_EQ(tile_descriptor(0x40000) >> 16, tile_descriptor(0) >> 16);  // nothing spills over
}

TEST(Float8TilesTest, EverySumHasOnePlace) {
  std::set<std::pair<int, int>> places;
  for (int thread = 0; thread < kTileThreads; ++thread) {
    for (int i = 0; i < kTileSums; ++i) {
      const TileSum at = tile_sum(thread, i);
      EXPECT_TRUE(0 <= at.row && at.row < kTileM && 0 <= at.column && at.column < kTileN);
      EXPECT_EQ(at.row / 16, thread / 32);
      places.insert({at.row, at.column});
    }
  }
  EXPECT_EQ(places.size(), static_cast<size_t>(kTileM * kTileN));
  const auto expect_at = [](int thread, int i, int row, int column) {
    EXPECT_EQ(tile_sum(thread, i).row, row);
    EXPECT_EQ(tile_sum(thread, i).column, column);
  };
  // The corners of the figure of m64nNk32's accumulator.
  expect_at(0, 1, 0, 1);
  expect_at(0, 2, 8, 0);
  expect_at(0, 4, 0, 8);
  expect_at(3, 0, 0, 6);
  expect_at(4, 0, 1, 0);
  expect_at(31, 3, 15, 7);
  expect_at(32, 0, 16, 0);
  expect_at(127, 31, 63, 63);
}

TEST(Float8TilesTest, BlocksCoverEveryTileOnce) {
  for (int64_t rows : {1, 64, 65, 300}) {
    for (int64_t n : {1, 64, 129}) {
      std::set<std::pair<int64_t, int64_t>> places;
      const int64_t tiles = tile_count(rows, kTileM) * tile_count(n, kTileN);
      for (int64_t block = 0; block < tiles; ++block) {
        const TilePlace place = tile_place(block, rows);
        EXPECT_TRUE(place.row % kTileM == 0 && place.row < rows);
        EXPECT_TRUE(place.column % kTileN == 0 && place.column < n);
        places.insert({place.row, place.column});
      }
      EXPECT_EQ(places.size(), static_cast<size_t>(tiles));
    }
  }
}

TEST(Float8TilesTest, ParityIsThatOfThePhaseThatThePieceCompletes) {
  // A barrier's phases have parities 0, 1, 0 ...; a wait for a parity ends when a phase of it is
  // over and the next has begun.
  std::vector<int> completed(kTileStages, 0);
  for (int64_t piece = 0; piece < 20; ++piece) {
    const int stage = tile_stage(piece);
    EXPECT_EQ(static_cast<int>(tile_parity(piece)), completed[stage] % 2) << piece;
    ++completed[stage];
  }
}

TEST(Float8TilesTest, SharedMemoryHoldsStagesAndBarriersWhereverItBegins) {
  for (uint32_t begin = 0; begin < 2048; begin += 16) {
    const uint32_t stages = begin + (-begin & 1023u);
    EXPECT_EQ(stages % 1024, 0u);
    EXPECT_LE(stages + kTileStages * kTileStageBytes + 8 * kTileStages, begin + kTileSharedBytes);
  }
  EXPECT_EQ(kTileBytesA % 1024, 0);  // so that the second operand is aligned too
  EXPECT_LE(kTileSharedBytes, 227 * 1024);
}

TEST(Float8TilesTest, MapsThatTmaTakes) {
  alignas(128) static const uint8_t memory[256] = {};
  EXPECT_TRUE(tile_map_fits(memory, 5, 32, 48));
  EXPECT_FALSE(tile_map_fits(memory + 8, 5, 32, 48));
  EXPECT_FALSE(tile_map_fits(memory, 5, 32, 40));
  EXPECT_FALSE(tile_map_fits(memory, 5, 32, 16));  // rows that overlap
  EXPECT_FALSE(tile_map_fits(memory, 0, 32, 32));
  EXPECT_FALSE(tile_map_fits(memory, 5, 0, 32));
  EXPECT_FALSE(tile_map_fits(memory, int64_t{1} << 31, 32, 32));
  EXPECT_FALSE(tile_map_fits(memory, 5, 32, int64_t{1} << 40));
  const TileMap map = tile_map(7, 300, 304, kTileN);
  EXPECT_EQ(map.sizes[0], 300u);
  EXPECT_EQ(map.sizes[1], 7u);
  EXPECT_EQ(map.strides[0], 304u);
  EXPECT_EQ(map.box[0], static_cast<uint32_t>(kTileK));
  EXPECT_EQ(map.box[1], static_cast<uint32_t>(kTileN));
}

/// What WGMMA reads: byte c of row r of the operand that the descriptor names.
uint8_t wgmma_reads(const simt::PlayedShared& shared, uint64_t descriptor, uint32_t r, uint32_t c) {
  const auto start = static_cast<uint32_t>((descriptor & 0x3fff) << 4);
  const auto group = static_cast<uint32_t>((descriptor >> 32 & 0x3fff) << 4);
  return shared.operand(start, group, r, c);
}

/// The kernel's loop with the hardware played by the host.
std::vector<float> played(const Float8Linear& job) {
  const auto* x = static_cast<const uint8_t*>(job.x);
  std::vector<float> out(job.rows * job.n, -1);
  const TileMap x_map = tile_map(job.rows, job.k, job.k, kTileM);
  const TileMap weight_map = tile_map(job.n, job.k, job.weight_stride, kTileN);
  const int64_t tiles = tile_count(job.rows, kTileM) * tile_count(job.n, kTileN);
  for (int64_t block = 0; block < tiles; ++block) {
    const TilePlace place = tile_place(block, job.rows);
    std::vector<float> totals(kTileThreads * kTileSums);
    for (int64_t piece = 0; piece < tile_count(job.k, kTileK); ++piece) {
      simt::PlayedShared shared(0x8000, kTileStageBytes);  // wraps no field of a descriptor
      shared.load(0, x_map, x, piece * kTileK, place.row);
      shared.load(kTileBytesA, weight_map, job.weight, piece * kTileK, place.column);
      const int64_t group = job.group == kFloat8Block ? piece : 0;
      for (int thread = 0; thread < kTileThreads; ++thread) {
        for (int i = 0; i < kTileSums; ++i) {
          const TileSum at = tile_sum(thread, i);
          const int64_t row = place.row + at.row, column = place.column + at.column;
          if (row >= job.rows || column >= job.n) continue;
          float sum = 0;
          for (int k = 0; k < kTileK; k += kTileStepK) {
            const uint64_t a = tile_descriptor(shared.address + k);
            const uint64_t b = tile_descriptor(shared.address + kTileBytesA + k);
            for (int c = 0; c < kTileStepK; ++c) {
              sum += e4m3_to_float(wgmma_reads(shared, a, at.row, c)) *
                     e4m3_to_float(wgmma_reads(shared, b, at.column, c));
            }
          }
          totals[thread * kTileSums + i] += sum * (job.x_scale[row * job.groups + group] *
                                                   job.weight_scale[column * job.groups + group]);
          out[row * job.n + column] = totals[thread * kTileSums + i];
        }
      }
    }
  }
  return out;
}

TEST(Float8TilesTest, LoopWithPlayedHardwareGivesTheProduct) {
  for (bool blocks : {false, true}) {
    for (auto [rows, k, n, gap] :
         {std::array<int64_t, 4>{17, 128, 64, 0}, {70, 272, 80, 16}, {130, 16, 7, 0}}) {
      const simt::Float8Job random(rows, k, n, gap, blocks);
      random.expect_product(played(random.job));
    }
  }
}

}  // namespace
}  // namespace aegis::kernels::cuda
