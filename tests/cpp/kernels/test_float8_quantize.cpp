#include "kernels/float8_quantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class Float8QuantizeTest : public EveryIsa {};
AEGIS_EVERY_ISA(Float8QuantizeTest);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint8_t kGuard = 0x5a;

/// Values and scales of one call, with guards behind them.
struct Result {
  std::vector<uint8_t> values;
  std::vector<uint32_t> scales;  // bits
  bool operator==(const Result&) const = default;
};

template <class Element>
Result quantize(Isa isa, const std::vector<float>& x, int64_t rows, bool blocks) {
  const int64_t k = rows ? static_cast<int64_t>(x.size()) / rows : 0;
  const int64_t group = blocks ? kFloat8Block : std::max(k, int64_t{1});
  const int64_t groups = blocks ? (k + group - 1) / group : 1;
  std::vector<Element> elements(1, from_float<Element>(kNan));  // nothing is aligned
  for (float value : x) elements.push_back(from_float<Element>(value));
  std::vector<uint8_t> values(1 + x.size() + 64, kGuard);
  std::vector<float> scales(rows * groups + 1, -1);
  float8_quantize_kernel<Element>(isa)(
      {elements.data() + 1, values.data() + 1, scales.data(), rows, k, group, groups}, 0, rows);
  EXPECT_EQ(values[0], kGuard);
  for (size_t i = x.size() + 1; i < values.size(); ++i) EXPECT_EQ(values[i], kGuard) << i;
  EXPECT_EQ(scales.back(), -1);
  Result result{{values.begin() + 1, values.begin() + 1 + x.size()}, {}};
  for (float scale : scales) result.scales.push_back(std::bit_cast<uint32_t>(scale));
  return result;
}

/// What the contract says, in double: the nearest of all E4M3 values, ties to the even code.
uint8_t nearest(float quotient) {
  if (std::isnan(quotient)) return 0x7f;
  const double size = std::fabs(static_cast<double>(quotient));
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double now = std::fabs(e4m3_to_float(code) - size);
    const double then = std::fabs(e4m3_to_float(best) - size);
    if (now < then || (now == then && code % 2 == 0)) best = code;
  }
  if (std::isinf(quotient)) best = 0x7e;
  return static_cast<uint8_t>(best | (std::signbit(quotient) ? 0x80 : 0));
}

template <class Element>
void expect_contract(Isa isa, const std::vector<float>& given, int64_t rows, bool blocks) {
  const int64_t k = static_cast<int64_t>(given.size()) / rows;
  const int64_t group = blocks ? kFloat8Block : std::max(k, int64_t{1});
  const Result got = quantize<Element>(isa, given, rows, blocks);
  EXPECT_EQ(got, quantize<Element>(Isa::scalar, given, rows, blocks)) << "k " << k;
  size_t at = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < k; first += group, ++at) {
      float amax = 0;
      const auto x = [&](int64_t i) { return to_float(from_float<Element>(given[row * k + i])); };
      const int64_t end = std::min(first + group, k);
      for (int64_t i = first; i < end; ++i) {
        if (std::isfinite(x(i))) amax = std::max(amax, std::fabs(x(i)));
      }
      const float scale = amax == 0 ? 1 : std::max(amax / 448, 0x1p-126f);
      ASSERT_EQ(got.scales[at], std::bit_cast<uint32_t>(scale)) << row << ", " << first;
      for (int64_t i = first; i < end; ++i) {
        ASSERT_EQ(got.values[row * k + i], nearest(x(i) / scale)) << x(i) << " / " << scale;
      }
    }
  }
}

template <class Element>
void every_size(Isa isa) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t k = 1; k <= 300; k += k < 70 ? 1 : 23) {
    for (bool blocks : {false, true}) {
      std::vector<float> x(2 * k);
      for (float& value : x) value = normal(random) * std::exp2(static_cast<float>(random() % 9));
      expect_contract<Element>(isa, x, 2, blocks);
    }
  }
}

TEST_P(Float8QuantizeTest, EverySize_float) { every_size<float>(GetParam()); }
TEST_P(Float8QuantizeTest, EverySize_Half) { every_size<Half>(GetParam()); }
TEST_P(Float8QuantizeTest, EverySize_BFloat16) { every_size<BFloat16>(GetParam()); }

TEST_P(Float8QuantizeTest, RoundsToNearestEvenEverywhere) {
  // A scale of 1, all values, the middles between neighbours, and the floats beside those.
  std::vector<float> x{448};
  for (int code = 0; code < 0x7e; ++code) {
    const float value = e4m3_to_float(code), middle = (value + e4m3_to_float(code + 1)) / 2;
    for (float one :
         {value, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 448.0f)}) {
      x.push_back(one);
      x.push_back(-one);
    }
  }
  expect_contract<float>(GetParam(), x, 1, false);
}

TEST_P(Float8QuantizeTest, ZeroRowsAndBlocksGetScaleOne_case49_case50) {
  std::vector<float> x(3 * 256, 0.0f);
  x[0] = 7;
  x[130] = -0.0f;
  for (bool blocks : {false, true}) {
    const Result got = quantize<float>(GetParam(), x, 3, blocks);
    const auto one = std::bit_cast<uint32_t>(1.0f);
    EXPECT_EQ(got.scales[0], std::bit_cast<uint32_t>(7 / 448.0f));
    for (size_t i = 1; i + 1 < got.scales.size(); ++i) EXPECT_EQ(got.scales[i], one);
    for (size_t i = 1; i < x.size(); ++i) EXPECT_EQ(got.values[i], i == 130 ? 0x80 : 0) << i;
  }
}

TEST_P(Float8QuantizeTest, SaturatesAndKeepsNan_case51) {
  // 448 in the row would be the largest; the scale is held at 1 by the infinities' absence from it.
  const std::vector<float> x{448, kInfinity, -kInfinity, kNan, -kNan, 1};
  const Result got = quantize<float>(GetParam(), x, 1, false);
  EXPECT_EQ(got.scales[0], std::bit_cast<uint32_t>(1.0f));
  EXPECT_EQ(got.values, (std::vector<uint8_t>{0x7e, 0x7e, 0xfe, 0x7f, 0x7f, 0x38}));
  for (float large : {449.0f, 464.0f, 465.0f, 480.0f}) {
    EXPECT_EQ(quantize<float>(GetParam(), {large, -large}, 1, false).values,
              (std::vector<uint8_t>{0x7e, 0xfe}));
  }
  const Result infinite = quantize<float>(GetParam(), {kInfinity, -kInfinity, kNan}, 1, false);
  EXPECT_EQ(infinite.scales[0], std::bit_cast<uint32_t>(1.0f));
  EXPECT_EQ(infinite.values, (std::vector<uint8_t>{0x7e, 0xfe, 0x7f}));
}

TEST_P(Float8QuantizeTest, ExtremeScales) {
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (float amax : {kSmallest, 1e-40f, 0x1p-126f, 447 * 0x1p-126f, 449 * 0x1p-126f, kLargest}) {
    expect_contract<float>(GetParam(), {amax, -amax, amax / 2, amax / 3, 0, amax / 1000}, 1, false);
  }
}

TEST_P(Float8QuantizeTest, NoRowsNoElements) {
  EXPECT_TRUE(quantize<float>(GetParam(), {}, 0, false).values.empty());
  const Result empty = quantize<float>(GetParam(), {}, 2, false);
  EXPECT_EQ(empty.scales[1], std::bit_cast<uint32_t>(1.0f));
}

}  // namespace
}  // namespace aegis::kernels
