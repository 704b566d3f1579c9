#include "kernels/float8_linear.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class Float8LinearTest : public EveryIsa {};
AEGIS_EVERY_ISA(Float8LinearTest);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuard = -77;

template <class Element>
constexpr Float8Result kType = Float8Result::float32;
template <>
constexpr Float8Result kType<Half> = Float8Result::float16;
template <>
constexpr Float8Result kType<BFloat16> = Float8Result::bfloat16;

/// One layer, whose weights have NaN between and around them and whose result has guards.
template <class Element = float>
struct Layer {
  int64_t rows, k, n, stride, groups;
  bool blocks;
  std::vector<uint8_t> x, weight;
  std::vector<float> x_scale, weight_scale;
  std::vector<Element> bias, out;

  Layer(int64_t rows, int64_t k, int64_t n, bool blocks, int64_t gap = 0)
      : rows(rows), k(k), n(n), stride(k + gap), blocks(blocks) {
    groups = blocks ? (k + kFloat8Block - 1) / kFloat8Block : 1;
    x.assign(rows * k, 0);
    weight.assign(1 + n * stride + 64, 0x7f);
    x_scale.assign(rows * groups, 1);
    weight_scale.assign(n * groups, 1);
    bias.assign(n, from_float<Element>(0));
    out.assign(rows * n + 1, from_float<Element>(kGuard));
  }

  uint8_t& weight_at(int64_t column, int64_t i) { return weight[1 + column * stride + i]; }

  /// Codes of any finite value but the largest, and scales of different sizes.
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    const auto code = [&] { return static_cast<uint8_t>(random() % 0x70 | (random() & 0x80)); };
    const auto scale = [&] { return std::ldexp(1 + 0.1f * (random() % 9), random() % 7); };
    for (uint8_t& value : x) value = code();
    for (int64_t i = 0; i < n * k; ++i) weight_at(i / k, i % k) = code();
    for (float& value : x_scale) value = scale();
    for (float& value : weight_scale) value = scale();
    for (Element& value : bias) value = from_float<Element>(static_cast<float>(random() % 100));
  }

  void run(Isa isa, bool with_bias = true, int64_t begin = 0, int64_t end = -1) {
    const Float8LinearKernel kernel = float8_linear_kernel(isa);
    const int64_t bytes = float8_row_bytes(k);
    const size_t whole = static_cast<size_t>(rows * bytes + 64);
    const std::unique_ptr<char, void (*)(void*)> spread(
        static_cast<char*>(std::aligned_alloc(64, (whole + 63) / 64 * 64)), std::free);
    std::fill_n(spread.get(), whole, '\x7f');  // garbage
    for (int64_t row = 0; row < rows; ++row) {
      kernel.spread(x.data() + row * k, k, spread.get() + row * bytes);
    }
    kernel.multiply({spread.get(), x_scale.data(), weight.data() + 1, stride, weight_scale.data(),
                     with_bias ? bias.data() : nullptr, out.data(), kType<Element>, rows, k, n,
                     blocks ? kFloat8Block : std::max(k, int64_t{1}), groups},
                    begin, end < 0 ? n : end);
    EXPECT_EQ(to_float(out.back()), kGuard);
  }

  /// The exact result and the sum of sizes.
  std::pair<double, double> exact(int64_t row, int64_t column, bool with_bias = true) {
    double sum = with_bias ? to_float(bias[column]) : 0, size = std::abs(sum);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t group = blocks ? i / kFloat8Block : 0;
      const double product = double{e4m3_to_float(x[row * k + i])} *
                             e4m3_to_float(weight_at(column, i)) * x_scale[row * groups + group] *
                             weight_scale[column * groups + group];
      sum += product;
      size += std::abs(product);
    }
    return {sum, size};
  }

  void expect_bound(bool with_bias = true) {
    constexpr double kRoundoff = sizeof(Element) == 4            ? 0
                                 : std::is_same_v<Element, Half> ? 0x1p-11
                                                                 : 0x1p-8;
    for (int64_t i = 0; i < rows * n; ++i) {
      const auto [want, size] = exact(i / n, i % n, with_bias);
      const double error = (160 + static_cast<double>(k) / 128) * 0x1p-24 * size;
      const double got = to_float(out[i]);
      if (std::is_same_v<Element, Half> && std::abs(want) + error > 65504) continue;
      ASSERT_LE(std::abs(got - want), error + kRoundoff * (std::abs(want) + error) + 0x1p-25)
          << rows << " rows, k " << k << ", n " << n << ", element " << i;
    }
  }
};

template <class Element>
void expect_layer(Isa isa, int64_t rows, int64_t k, int64_t n, bool blocks, int64_t gap) {
  Layer<Element> layer(rows, k, n, blocks, gap);
  layer.fill(static_cast<unsigned>(rows + 9 * k + 1000 * n));
  const bool with_bias = (k + n) % 2;
  layer.run(isa, with_bias);
  layer.expect_bound(with_bias);
}

TEST_P(Float8LinearTest, EverySize) {
  for (int64_t size = 1; size <= 300; size += size < 66 ? 1 : 13) {
    for (int64_t other : {1, 3, 8, 17}) {
      const int64_t rows = 1 + (size + other) % 12;
      expect_layer<float>(GetParam(), rows, size, other, size % 2, size % 3);
      expect_layer<float>(GetParam(), rows, other * 40 + 1, size, size % 2, size % 3);
    }
  }
}

TEST_P(Float8LinearTest, EveryNumberOfRows) {
  for (int64_t rows = 0; rows <= kFloat8Rows; rows += rows < 14 ? 1 : 10) {
    for (int64_t k : {1, 64, 127, 385}) {
      for (int64_t n : {1, 4, 9}) expect_layer<float>(GetParam(), rows, k, n, k % 2, 0);
    }
  }
}

TEST_P(Float8LinearTest, LongRows) {
  for (int64_t rows : {1, 2, 9}) {
    for (int64_t k : {1024, 2047, 4100, 8192}) {
      expect_layer<float>(GetParam(), rows, k, 9, false, 5);
      expect_layer<float>(GetParam(), rows, k, 9, true, 0);
    }
  }
}

TEST_P(Float8LinearTest, HalfResults) {
  for (int64_t rows : {1, 3, 11}) {
    expect_layer<Half>(GetParam(), rows, 3, 19, false, 0);
    expect_layer<BFloat16>(GetParam(), rows, 200, 19, true, 0);
  }
}

TEST_P(Float8LinearTest, AllPairsOfValues) {
  // All codes of x against all codes of weights, one product to a result, 64 rows at a time, and
  // again one row at a time.
  for (int64_t rows : {int64_t{1}, kFloat8Rows}) {
    for (int64_t first = 0; first < 256; first += rows) {
      Layer<> layer(rows, 1, 256, false);
      for (int64_t row = 0; row < rows; ++row) layer.x[row] = static_cast<uint8_t>(first + row);
      for (int64_t c = 0; c < 256; ++c) layer.weight_at(c, 0) = static_cast<uint8_t>(c);
      layer.run(GetParam(), false);
      for (int64_t i = 0; i < rows * 256; ++i) {
        const float want = e4m3_to_float(layer.x[i / 256]) * e4m3_to_float(i % 256);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(layer.out[i])) << i;
        } else {
          ASSERT_EQ(layer.out[i], want) << i;
        }
      }
    }
  }
}

TEST_P(Float8LinearTest, SmallProductsBesideLargeOnes_case53) {
  // Sums of 14 bits would lose all of the products after the first.
  constexpr int64_t kK = 4097;
  for (int64_t rows : {1, 5, 9}) {
    Layer<> layer(rows, kK, 3, false);
    for (int64_t i = 0; i < rows * kK; ++i) {
      layer.x[i] = i % kK == 0 ? float_to_e4m3(448) : float_to_e4m3(1);
    }
    for (int64_t i = 0; i < 3 * kK; ++i) {
      layer.weight_at(i / kK, i % kK) = i % kK == 0 ? float_to_e4m3(448) : float_to_e4m3(7.5);
    }
    layer.run(GetParam(), false);
    for (int64_t i = 0; i < rows * 3; ++i) EXPECT_EQ(layer.out[i], 448 * 448 + 7.5f * (kK - 1));
  }
}

TEST_P(Float8LinearTest, NanFillsItsRowOrColumn) {
  for (int64_t rows : {2, 9}) {
    for (int64_t k : {5, 64, 129, 3000}) {
      for (uint8_t nan : {0x7f, 0xff}) {
        Layer<> layer(rows, k, 9, k % 2);
        layer.fill(3);
        layer.x[k + k - 1] = nan;
        layer.weight_at(4, k / 2) = nan;
        layer.run(GetParam());
        for (int64_t i = 0; i < rows * 9; ++i) {
          ASSERT_EQ(std::isnan(layer.out[i]), i / 9 == 1 || i % 9 == 4) << k << ", " << i;
        }
      }
    }
  }
}

TEST_P(Float8LinearTest, OnlyItsColumns) {
  for (int64_t rows : {1, 9}) {
    Layer<> whole(rows, 200, 30, true), parts(rows, 200, 30, true);
    whole.fill(5);
    parts.fill(5);
    parts.run(GetParam(), true, 7, 18);
    for (int64_t i = 0; i < rows * 30; ++i) {
      if (i % 30 < 7 || i % 30 >= 18) {
        ASSERT_EQ(parts.out[i], kGuard) << i;
      }
    }
    parts.run(GetParam(), true, 0, 7);
    parts.run(GetParam(), true, 18, 30);
    parts.expect_bound();
  }
}

TEST_P(Float8LinearTest, ReadsNothingPastTheWeights) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* const pages = static_cast<char*>(
      mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages, page, PROT_NONE), 0);
  ASSERT_EQ(mprotect(pages + 2 * page, page, PROT_NONE), 0);
  for (int64_t k : {1, 15, 33, 63, 65, 130}) {
    for (int64_t rows : {1, 2, 9}) {
      const int64_t n = 5;
      Layer<> layer(rows, k, n, k % 2);
      layer.fill(8);
      auto* end = reinterpret_cast<uint8_t*>(pages + 2 * page);
      auto* begin = reinterpret_cast<uint8_t*>(pages + page);
      for (uint8_t* weight : {begin, end - n * k}) {
        for (int64_t i = 0; i < n * k; ++i) weight[i] = layer.weight_at(i / k, i % k);
        const Float8LinearKernel kernel = float8_linear_kernel(GetParam());
        const int64_t bytes = float8_row_bytes(k);
        const std::unique_ptr<char, void (*)(void*)> spread(
            static_cast<char*>(std::aligned_alloc(64, rows * bytes)), std::free);
        for (int64_t row = 0; row < rows; ++row) {
          kernel.spread(layer.x.data() + row * k, k, spread.get() + row * bytes);
        }
        kernel.multiply({spread.get(), layer.x_scale.data(), weight, k, layer.weight_scale.data(),
                         layer.bias.data(), layer.out.data(), Float8Result::float32, rows, k, n,
                         layer.blocks ? kFloat8Block : k, layer.groups},
                        0, n);
        layer.expect_bound();
      }
    }
  }
  munmap(pages, 3 * page);
}

TEST_P(Float8LinearTest, NoRowsNoColumnsNoElements) {
  for (bool blocks : {false, true}) {
    Layer<> none(0, 5, 3, blocks), narrow(2, 5, 0, blocks), empty(7, 0, 3, blocks);
    none.run(GetParam());
    narrow.run(GetParam());
    empty.run(GetParam());
    for (int i = 0; i < 21; ++i) EXPECT_EQ(empty.out[i], 0);
  }
}

}  // namespace
}  // namespace aegis::kernels
