// The arithmetic of float8_linear's tiles on SM100. TMA, the tensor cores, their memory and the
// barriers are played by the host as the PTX ISA describes them: what is asynchronous there happens
// in any order here, too.
#include "kernels/cuda/float8_tiles_sm100.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/cuda/float8_tiles.h"
#include "simt/float8_job.h"
#include "simt/played_tma.h"

namespace aegis::kernels::cuda::sm100 {
namespace {

constexpr uint32_t bits(uint64_t word, int from, int count) {
  return static_cast<uint32_t>(word >> from & ((uint64_t{1} << count) - 1));
}

TEST(Float8TilesSm100Test, InstructionDescriptorFields) {
  const uint32_t d = instruction_descriptor();
  EXPECT_EQ(bits(d, 0, 4), 0u);   // dense; saturation is for integers
  EXPECT_EQ(bits(d, 4, 2), 1u);   // sums in float32
  EXPECT_EQ(bits(d, 7, 3), 0u);   // a: E4M3
  EXPECT_EQ(bits(d, 10, 3), 0u);  // b: E4M3
  EXPECT_EQ(bits(d, 13, 4), 0u);  // nothing negated, both K-major
  EXPECT_EQ(bits(d, 17, 6) * 8, uint32_t{kN});
  EXPECT_EQ(bits(d, 24, 5) * 16, uint32_t{kM});
  EXPECT_EQ(bits(d, 6, 1) | bits(d, 23, 1) | bits(d, 29, 3), 0u);  // reserved, and for .ws
  EXPECT_TRUE(kM == 128 && kN % 16 == 0 && kN <= 256);             // shapes that there are
}

TEST(Float8TilesSm100Test, OperandDescriptorFields) {
  const uint64_t d = operand_descriptor(0x12340);
  EXPECT_EQ(bits(d, 0, 14), 0x1234u);  // start / 16
  EXPECT_EQ(bits(d, 16, 14), 1u);      // leading offset, unused
  EXPECT_EQ(bits(d, 32, 14), 64u);     // 1,024 bytes from eight rows to the next
  EXPECT_EQ(bits(d, 46, 3), 1u);       // fixed
  EXPECT_EQ(bits(d, 49, 3), 0u);       // base offset: tiles begin at multiples of 1,024
  EXPECT_EQ(bits(d, 52, 9), 0u);       // relative offsets; fixed zeros
  EXPECT_EQ(bits(d, 61, 3), 2u);       // 128-byte swizzle
  EXPECT_EQ(bits(d, 14, 2) | bits(d, 30, 2), 0u);
  EXPECT_EQ(operand_descriptor(0x40000) >> 16, d >> 16);  // nothing spills over
}

TEST(Float8TilesSm100Test, EverySumHasItsPlaceInTensorMemory) {
  EXPECT_TRUE(kTensorColumns >= 32 && kTensorColumns <= 512);
  EXPECT_EQ(kTensorColumns & (kTensorColumns - 1), 0u);
  EXPECT_EQ(kSumWarps * 32, kM);
  for (const uint32_t base : {0u, 256u}) {
    std::set<uint32_t> places;
    for (int warp = 0; warp < kSumWarps; ++warp) {
      for (int slot = 0; slot < kSums; ++slot) {
        for (int column = 0; column < kN; ++column) {
          const uint32_t at = sum_address(base, warp, slot, column);
          EXPECT_EQ(at >> 16, 32u * warp);  // the first of the lanes that the warp may read
          EXPECT_TRUE((at & 0xffff) >= base && (at & 0xffff) < base + kTensorColumns);
          places.insert(at);
        }
      }
    }
    EXPECT_EQ(places.size(), size_t{kSumWarps} * kTensorColumns);
  }
}

TEST(Float8TilesSm100Test, BlocksCoverEveryTileOnce) {
  for (int64_t rows : {1, 128, 129, 300}) {
    for (int64_t n : {1, 128, 257}) {
      std::set<std::pair<int64_t, int64_t>> places;
      const int64_t tiles = tile_count(rows, kM) * tile_count(n, kN);
      for (int64_t block = 0; block < tiles; ++block) {
        const TilePlace place = tile_place(block, rows, kM, kN);
        EXPECT_TRUE(place.row % kM == 0 && place.row < rows);
        EXPECT_TRUE(place.column % kN == 0 && place.column < n);
        places.insert({place.row, place.column});
      }
      EXPECT_EQ(places.size(), static_cast<size_t>(tiles));
    }
  }
}

TEST(Float8TilesSm100Test, SharedMemoryHoldsAllWhereverItBegins) {
  for (uint32_t begin = 0; begin < 2048; begin += 16) {
    const uint32_t stages = begin + (-begin & 1023u);
    EXPECT_LE(stages + kStages * kStageBytes + sizeof(Tail), begin + kSharedBytes);
  }
  EXPECT_EQ(kBytesA % 1024, 0);  // so that the second operand is aligned too
  EXPECT_EQ(kStages * kStageBytes % alignof(Tail), 0u);
  EXPECT_LE(kSharedBytes, 227 * 1024);
}

TEST(Float8TilesSm100Test, TurningMeetsNoBankTwice) {
  for (int i = 0; i < kN; ++i) {
    std::set<int> banks;
    for (int lane = 0; lane < 32; ++lane) banks.insert((lane * kTurnStride + i) % 32);
    EXPECT_EQ(banks.size(), 32u);
  }
}

/// An mbarrier: its phases are counted, and end with all arrivals and all expected bytes.
struct Barrier {
  int arrivals;
  int arrived = 0;
  int64_t bytes = 0;
  unsigned phase = 0;

  void arrive(int64_t expected = 0) {
    ++arrived;
    bytes += expected;
    end();
  }
  void came(int64_t count) {
    bytes -= count;
    end();
  }
  /// What mbarrier.try_wait.parity says.
  bool over(unsigned parity) const { return phase % 2 != parity; }

 private:
  void end() {
    ASSERT_LE(arrived, arrivals);
    if (arrived < arrivals || bytes != 0) return;
    arrived = 0;
    ++phase;
  }
};

/// One block: its warps and what runs beside them, each a step at a time and in any order.
class Block {
 public:
  Block(const Float8Linear& job, TilePlace place, unsigned seed) : job_(job), place_(place) {
    for (int i = 0; i < kStages; ++i) full_.push_back({1}), empty_.push_back({1});
    for (int i = 0; i < kSums; ++i) summed_.push_back({1}), read_.push_back({kSumWarps});
    random_.seed(seed);
  }

  void run(std::vector<float>& out) {
    const std::array<std::function<bool()>, 4 + kSumWarps> steps{
        [&] { return copy(); },   [&] { return tma(); },  [&] { return multiply(); },
        [&] { return tensor(); }, [&] { return add(0); }, [&] { return add(1); },
        [&] { return add(2); },   [&] { return add(3); }};
    int idle = 0;
    while (
        idle < 1000 &&
        !std::all_of(added_.begin(), added_.end(), [&](int64_t done) { return done == pieces_; })) {
      idle = steps[random_() % steps.size()]() ? 0 : idle + 1;
    }
    ASSERT_LT(idle, 1000) << "all wait";
    for (int64_t r = 0; r < std::min<int64_t>(kM, job_.rows - place_.row); ++r) {
      for (int64_t c = 0; c < std::min<int64_t>(kN, job_.n - place_.column); ++c) {
        const int64_t row = place_.row + r, column = place_.column + c;
        const float scale = blocks_ ? 1 : job_.x_scale[row] * job_.weight_scale[column];
        out[row * job_.n + column] = totals_[r * kN + c] * scale;
      }
    }
  }

 private:
  bool copy() {
    if (copied_ == pieces_) return false;
    const auto [slot, parity] = turn(copied_, kStages);
    if (!empty_[slot].over(parity ^ 1)) return false;
    full_[slot].arrive(kStageBytes);
    const auto column = copied_ * kTileK;
    const uint32_t to = slot * kStageBytes;
    copies_.push_back([=, this, s = slot] {
      const auto* x = static_cast<const uint8_t*>(job_.x);
      shared_.load(to, tile_map(job_.rows, job_.k, job_.k, kM), x, column, place_.row);
      full_[s].came(kBytesA);
    });
    copies_.push_back([=, this, s = slot] {
      shared_.load(to + kBytesA, tile_map(job_.n, job_.k, job_.weight_stride, kN), job_.weight,
                   column, place_.column);
      full_[s].came(kBytesB);
    });
    ++copied_;
    return true;
  }

  bool tma() {  // copies end in any order
    if (copies_.empty()) return false;
    std::swap(copies_[random_() % copies_.size()], copies_.back());
    const auto copy = std::move(copies_.back());
    copies_.pop_back();
    copy();
    return true;
  }

  bool multiply() {
    if (multiplied_ == pieces_) return false;
    const Turn stage = turn(multiplied_, kStages), sum = turn(multiplied_, kSums);
    if (!read_[sum.slot].over(sum.parity ^ 1) || !full_[stage.slot].over(stage.parity)) {
      return false;
    }
    const uint32_t a = shared_.address + stage.slot * kStageBytes;
    const uint32_t to = sum_address(kBase, 0, sum.slot, 0);
    for (int k = 0; k < kTileK; k += kStepK) {
      products_.push_back([=, this] {
        mma(to, operand_descriptor(a + k), operand_descriptor(a + kBytesA + k), k == 0);
      });
    }
    products_.push_back([=, this] { empty_[stage.slot].arrive(); });
    products_.push_back([=, this] { summed_[sum.slot].arrive(); });
    ++multiplied_;
    return true;
  }

  bool tensor() {  // products and commits end in their order
    if (products_.empty()) return false;
    const auto product = std::move(products_.front());
    products_.pop_front();
    product();
    return true;
  }

  void mma(uint32_t to, uint64_t a, uint64_t b, bool fresh) {
    const uint32_t shape = instruction_descriptor();
    const uint32_t m = bits(shape, 24, 5) * 16, n = bits(shape, 17, 6) * 8;
    const auto decoded = [&](uint64_t descriptor, uint32_t rows) {
      std::vector<float> values;
      for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t c = 0; c < 32; ++c) {
          values.push_back(e4m3_to_float(
              shared_.operand(bits(descriptor, 0, 14) << 4, bits(descriptor, 32, 14) << 4, r, c)));
        }
      }
      return values;
    };
    const std::vector<float> left = decoded(a, m), right = decoded(b, n);
    for (uint32_t r = 0; r < m; ++r) {
      for (uint32_t c = 0; c < n; ++c) {
        float& sum = tensor_memory_[((to >> 16) + r) * 512 + (to & 0xffff) + c];
        float mine = fresh ? 0 : sum;
        for (uint32_t k = 0; k < 32; ++k) mine += left[r * 32 + k] * right[c * 32 + k];
        sum = mine;
      }
    }
  }

  bool add(int warp) {
    const int64_t piece = added_[warp];
    if (piece == pieces_) return false;
    const auto [slot, parity] = turn(piece, kSums);
    if (!summed_[slot].over(parity)) return false;
    for (int lane = 0; lane < 32; ++lane) {
      const int64_t r = warp * 32 + lane, row = place_.row + r;
      for (int c = 0; c < kN; ++c) {
        const int64_t column = place_.column + c;
        if (row >= job_.rows || column >= job_.n) continue;
        const uint32_t at = sum_address(kBase, warp, slot, c);
        const float scale = blocks_ ? job_.x_scale[row * job_.groups + piece] *
                                          job_.weight_scale[column * job_.groups + piece]
                                    : 1;
        totals_[r * kN + c] += tensor_memory_[((at >> 16) + lane) * 512 + (at & 0xffff)] * scale;
      }
    }
    read_[slot].arrive();
    ++added_[warp];
    return true;
  }

  static constexpr uint32_t kBase = 128;  ///< where the hardware put the sums
  const Float8Linear& job_;
  const TilePlace place_;
  const bool blocks_ = job_.group == kFloat8Block;
  const int64_t pieces_ = tile_count(job_.k, kTileK);
  std::mt19937 random_;
  simt::PlayedShared shared_{0x8000, kStages* kStageBytes};
  std::vector<float> tensor_memory_ = std::vector<float>(128 * 512, 1e30f);
  std::vector<Barrier> full_, empty_, summed_, read_;
  std::vector<std::function<void()>> copies_;
  std::deque<std::function<void()>> products_;
  int64_t copied_ = 0, multiplied_ = 0;
  std::array<int64_t, kSumWarps> added_{};
  std::vector<float> totals_ = std::vector<float>(kM * kN);
};

TEST(Float8TilesSm100Test, BlocksWithPlayedHardwareGiveTheProduct) {
  for (bool blocks : {false, true}) {
    for (auto [rows, k, n, gap] :
         {std::array<int64_t, 4>{17, 128, 128, 0}, {30, 1296, 40, 16}, {130, 16, 7, 0}}) {
      const simt::Float8Job random(rows, k, n, gap, blocks);
      for (unsigned seed = 0; seed < 2; ++seed) {
        std::vector<float> out(rows * n, -1);
        const int64_t tiles = tile_count(rows, kM) * tile_count(n, kN);
        for (int64_t block = 0; block < tiles; ++block) {
          Block(random.job, tile_place(block, rows, kM, kN), seed).run(out);
        }
        random.expect_product(out);
      }
    }
  }
}

}  // namespace
}  // namespace aegis::kernels::cuda::sm100
