#include "kernels/pack_ternary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace aegis::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<uint32_t> packed(const std::vector<float>& row, float scale) {
  const PackTernary<float> job{row.data(), 0, static_cast<int64_t>(row.size())};
  std::vector<uint32_t> words(trit_words(job.k) + 1, 0x12345678);
  pack_row(job, 0, scale, words.data());
  EXPECT_EQ(words.back(), 0x12345678u);
  words.pop_back();
  return words;
}

Magnitudes magnitudes(const std::vector<float>& row) {
  return magnitudes_of<float>({row.data(), 0, static_cast<int64_t>(row.size())}, 0);
}

float scale_of(const std::vector<float>& row) {
  return ternary_scale(magnitudes(row), static_cast<int64_t>(row.size()));
}

TEST(PackTernary, CodesStandAtTheirBits) {
  EXPECT_EQ(packed({1, -1, 0, 1}, 1), std::vector<uint32_t>{0b01'00'10'01});
  std::vector<float> row(33, 1);
  row[15] = row[32] = -1;
  EXPECT_EQ(packed(row, 1), (std::vector<uint32_t>{0x95555555, 0x55555555, 2}));
  EXPECT_TRUE(packed({}, 1).empty());
}

TEST(PackTernary, RoundsToTheNearestTritAndHalvesToZero) {
  EXPECT_EQ(packed({0.5f, -0.5f, 0.50001f, -0.50001f, 3e38f, -3e38f, -0.0f}, 1),
            std::vector<uint32_t>{0b00'10'01'10'01'00'00});
  EXPECT_EQ(packed({0x1p-149f, -0x1p-149f}, 0x1p-149f), std::vector<uint32_t>{0b10'01});
  EXPECT_EQ(packed({0x1p-149f, 0x1p-148f}, 0x1p-148f), std::vector<uint32_t>{0b01'00});
  EXPECT_EQ(packed({3e38f, 1e38f}, 3e38f), std::vector<uint32_t>{0b00'01});
}

TEST(PackTernary, ScaleOfTernaryWeightsIsTheirMagnitude) {
  EXPECT_EQ(scale_of({0.3f, 0, -0.3f, 0, 0}), 0.3f);
  EXPECT_EQ(scale_of({-0x1p-149f, 0}), 0x1p-149f);
  EXPECT_EQ(scale_of({0, -0.0f}), 1);
  EXPECT_EQ(scale_of({}), 1);
}

TEST(PackTernary, ScaleOfOthersIsTheMeanMagnitude) {
  EXPECT_EQ(scale_of({1, -2, 0, 5}), 2);
  EXPECT_EQ(scale_of({3e38f, -3.2e38f}), 3.1e38f);  // the sum is beyond float32
  EXPECT_EQ(scale_of({0x1p-149f, 0x1p-148f, 0, 0, 0, 0, 0, 0, 0}), 0x1p-149f);
}

TEST(PackTernary, PartsOfAMatrixAreMerged) {
  const Magnitudes both = merged(magnitudes({1, 0}), magnitudes({-4}));
  EXPECT_EQ(both.sum, 5);
  EXPECT_EQ(both.smallest, 1);
  EXPECT_EQ(both.largest, 4);
  EXPECT_TRUE(both.finite);
  EXPECT_FALSE(merged(both, magnitudes({kInfinity})).finite);
  EXPECT_FALSE(merged(magnitudes({NAN}), both).finite);
}

TEST(PackTernary, RowsMayBeApartAndOfOtherTypes) {
  const std::vector<BFloat16> weight{from_float<BFloat16>(2), from_float<BFloat16>(9),
                                     from_float<BFloat16>(-2), from_float<BFloat16>(9)};
  const PackTernary<BFloat16> job{weight.data(), 2, 1};
  EXPECT_EQ(magnitudes_of(job, 1).sum, 2);
  uint32_t word;
  pack_row(job, 1, 2, &word);
  EXPECT_EQ(word, 2u);
}

}  // namespace
}  // namespace aegis::kernels
