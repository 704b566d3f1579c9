#include "kernels/ternary_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class TernaryLinearTest : public EveryIsa {};
AEGIS_EVERY_ISA(TernaryLinearTest);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kGuard = -77;
constexpr uint32_t kGarbage = 0xffffffff;  // codes of 11, around the weights

/// A layer, no operand of which is aligned to more than its elements, with garbage around each.
template <class Element>
struct Layer {
  int64_t rows, k, n;
  std::vector<Element> x, bias, out;
  std::vector<uint32_t> packed;
  std::vector<float> scale, floats, scales;
  std::vector<int8_t> values;
  std::vector<int32_t> sums;

  Layer(int64_t rows, int64_t k, int64_t n, unsigned seed = 1)
      : rows(rows),
        k(k),
        n(n),
        x(1 + rows * k),
        bias(1 + n),
        out(rows * n + 2, from_float<Element>(kGuard)),
        packed(n * trit_words(k) + 18, kGarbage),
        scale(n),
        floats(1 + rows * ternary_padded(k), kNan),
        scales(rows, kNan),
        values(1 + rows * ternary_padded(k), 99),
        sums(rows, 99) {
    std::mt19937 random(seed + static_cast<unsigned>(rows + 9 * k + 1000 * n));
    std::normal_distribution<float> normal;
    for (Element& one : x) one = from_float<Element>(normal(random));
    for (Element& one : bias) one = from_float<Element>(normal(random));
    for (float& one : scale) one = std::abs(normal(random));
    for (int64_t column = 0; column < n; ++column) {
      for (int64_t word = 0; word < trit_words(k); ++word) word_at(column, word) = 0;
      for (int64_t i = 0; i < k; ++i) set(column, i, static_cast<int>(random() % 3) - 1);
    }
  }

  uint32_t& word_at(int64_t column, int64_t word) {
    return packed[1 + column * trit_words(k) + word];
  }
  Element& x_at(int64_t row, int64_t i) { return x[1 + row * k + i]; }
  float out_at(int64_t row, int64_t column) const { return to_float(out[1 + row * n + column]); }
  void set(int64_t column, int64_t i, int trit) {
    uint32_t& word = word_at(column, i / 16);
    word = (word & ~(3u << 2 * (i % 16))) | (trit > 0 ? 1u : trit < 0 ? 2u : 0u) << 2 * (i % 16);
  }
  int trit(int64_t column, int64_t i) {
    const uint32_t code = word_at(column, i / 16) >> 2 * (i % 16) & 3;
    return code == 1 ? 1 : code == 2 ? -1 : 0;
  }

  bool run(Isa isa, bool exact = false, bool one_scale = false) {
    return run(isa, exact, one_scale, 0, n);
  }
  bool run(Isa isa, bool exact, bool one_scale, int64_t begin, int64_t end) {
    const TernaryLinear<Element> job{x.data() + 1,
                                     packed.data() + 1,
                                     scale.data(),
                                     one_scale ? 0 : 1,
                                     bias.data() + 1,
                                     out.data() + 1,
                                     rows,
                                     k,
                                     n,
                                     values.data() + 1,
                                     scales.data(),
                                     sums.data(),
                                     floats.data() + 1};
    const auto kernels = ternary_kernels<Element>(exact, isa);
    kernels.prepare(job, 0, rows);
    const bool valid = kernels.columns(job, begin, end);
    EXPECT_EQ(to_float(out.front()), kGuard);
    EXPECT_EQ(to_float(out.back()), kGuard);
    return valid;
  }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Every version prepares the same bytes and gives the same bits as the oracle.
template <class Element>
void expect_the_oracles_bits(Isa isa, int64_t rows, int64_t k, int64_t n) {
  Layer<Element> oracle(rows, k, n), layer(rows, k, n);
  ASSERT_TRUE(oracle.run(Isa::scalar, false, k % 2));
  ASSERT_TRUE(layer.run(isa, false, k % 2)) << rows << " x " << k << " x " << n;
  ASSERT_EQ(layer.values, oracle.values) << rows << " x " << k << " x " << n;
  ASSERT_EQ(layer.sums, oracle.sums);
  ASSERT_TRUE(same_bits(layer.scales, oracle.scales));
  ASSERT_TRUE(same_bits(layer.out, oracle.out)) << rows << " x " << k << " x " << n;
}

TEST_P(TernaryLinearTest, SameBitsAsTheOracleAtEverySize_case46) {
  for (int64_t size = 1; size <= 300; ++size) {
    expect_the_oracles_bits<float>(GetParam(), 1 + size % 3, size, 1 + size % 11);
    expect_the_oracles_bits<float>(GetParam(), 1 + size % 9, 1 + size % 37, size);
  }
  for (int64_t rows = 0; rows <= 13; ++rows) {
    expect_the_oracles_bits<float>(GetParam(), rows, 517, 9);
    expect_the_oracles_bits<Half>(GetParam(), rows, 271, 6);
    expect_the_oracles_bits<BFloat16>(GetParam(), rows, 271, 6);
  }
  expect_the_oracles_bits<float>(GetParam(), 1, 4099, 131);
  expect_the_oracles_bits<BFloat16>(GetParam(), 2, 8192, 33);
  expect_the_oracles_bits<float>(GetParam(), 3, 0, 5);
  expect_the_oracles_bits<float>(GetParam(), 70, 5000, 3);  // more rows than one panel
}

TEST_P(TernaryLinearTest, LargestSumsDoNotOverflow_case44) {
  for (const int64_t k : {8192, 70'000}) {
    for (const int sign : {1, -1}) {
      for (const int64_t rows : {1, 2, 4}) {
        Layer<float> layer(rows, k, 5);
        for (int64_t i = 0; i < rows * k; ++i) layer.x_at(0, i) = 127.0f * static_cast<float>(sign);
        for (int64_t i = 0; i < k; ++i) {
          layer.set(0, i, 1);
          layer.set(1, i, -1);
          layer.set(2, i, 0);
        }
        for (float& one : layer.scale) one = 1;
        for (float& one : layer.bias) one = 0;
        ASSERT_TRUE(layer.run(GetParam()));
        for (int64_t row = 0; row < rows; ++row) {
          EXPECT_EQ(layer.out_at(row, 0), static_cast<float>(127 * k * sign)) << k;
          EXPECT_EQ(layer.out_at(row, 1), static_cast<float>(-127 * k * sign)) << k;
          EXPECT_EQ(layer.out_at(row, 2), 0) << k;
        }
      }
    }
  }
}

TEST_P(TernaryLinearTest, TheLongestRowDoesNotOverflow_case44) {
  Layer<float> layer(1, kTernaryMaxK, 1);
  for (int64_t i = 0; i < layer.k; ++i) {
    layer.x_at(0, i) = 1;
    layer.set(0, i, -1);
  }
  layer.scale[0] = 127;
  layer.bias[1] = 0;
  ASSERT_TRUE(layer.run(GetParam()));
  EXPECT_EQ(layer.out_at(0, 0), -static_cast<float>(127 * layer.k));
}

TEST_P(TernaryLinearTest, RowsThatAreNotNumbersAreNan) {
  for (const float value : {kNan, kInfinity, -kInfinity}) {
    for (const int64_t at : {0, 255, 256, 299}) {
      Layer<float> layer(5, 300, 7), oracle(5, 300, 7);
      for (Layer<float>* one : {&layer, &oracle}) one->x_at(2, at) = value;
      ASSERT_TRUE(oracle.run(Isa::scalar));
      ASSERT_TRUE(layer.run(GetParam()));
      ASSERT_EQ(layer.values, oracle.values);
      for (int64_t i = 0; i < 35; ++i) {
        EXPECT_EQ(std::isnan(layer.out_at(i / 7, i % 7)), i / 7 == 2) << i;
        EXPECT_EQ(std::isnan(oracle.out_at(i / 7, i % 7)), i / 7 == 2) << i;
      }
    }
  }
}

TEST_P(TernaryLinearTest, SmallAndLargeRowsKeepTheirPrecision) {
  for (const float size :
       {0x1p-149f, 0x1.5p-140f, 0x1p-127f, 0x1p-100f, 0x1p-99f, 1.0f, 0x1.fffffep127f}) {
    Layer<float> layer(1, 40, 1), oracle(1, 40, 1);
    for (Layer<float>* one : {&layer, &oracle}) {
      for (int64_t i = 0; i < 40; ++i) one->x_at(0, i) = i % 3 ? size : -size / 2;
      one->bias[1] = 0;
    }
    oracle.run(Isa::scalar);
    layer.run(GetParam());
    EXPECT_EQ(layer.values, oracle.values) << size;
    EXPECT_EQ(layer.values[1 + ternary_place(1)], 127) << size;
    EXPECT_TRUE(same_bits(layer.out, oracle.out)) << size;
  }
  Layer<float> zeros(2, 40, 3);
  for (int64_t i = 0; i < 80; ++i) zeros.x_at(0, i) = i % 2 ? 0.0f : -0.0f;
  ASSERT_TRUE(zeros.run(GetParam()));
  EXPECT_EQ(zeros.scales, std::vector<float>(2, 1.0f));
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(zeros.out_at(i / 3, i % 3), zeros.bias[1 + i % 3]);
}

TEST_P(TernaryLinearTest, ACodeOf11IsFoundWhereverItStands) {
  for (const bool exact : {false, true}) {
    for (const int64_t rows : {1, 2, 4}) {
      for (int64_t at = 0; at < 600; at += 23) {
        Layer<float> layer(rows, 600, 6);
        ASSERT_TRUE(layer.run(GetParam(), exact));
        layer.word_at(at % 6, at / 16) |= 3u << 2 * (at % 16);
        EXPECT_FALSE(layer.run(GetParam(), exact)) << at;
        const int64_t column = at % 6;
        EXPECT_FALSE(layer.run(GetParam(), exact, false, column, column + 1)) << at;
        EXPECT_TRUE(layer.run(GetParam(), exact, false, 0, column)) << at;
        EXPECT_TRUE(layer.run(GetParam(), exact, false, column + 1, 6)) << at;
      }
    }
  }
}

TEST_P(TernaryLinearTest, WeightsOfLongerRowsAreFound) {
  for (const bool exact : {false, true}) {
    for (const int64_t rows : {1, 2, 4}) {
      for (int64_t used = 1; used < 16; ++used) {
        const int64_t column = used % 6;
        for (const uint32_t code : {1u, 2u}) {
          Layer<float> layer(rows, 288 + used, 6);
          layer.word_at(column, 18) |= code << 2 * (used + used % 2 * (15 - used));
          EXPECT_FALSE(layer.run(GetParam(), exact)) << used;
          EXPECT_TRUE(layer.run(GetParam(), exact, false, 0, column)) << used;
          EXPECT_TRUE(layer.run(GetParam(), exact, false, column + 1, 6)) << used;
        }
      }
    }
  }
}

/// In every order of additions.
template <class Element>
void keeps_the_exact_bound(Isa isa, double relative, double absolute) {
  for (const int64_t k : {1, 16, 31, 300, 4097}) {
    for (const int64_t rows : {1, 2, 3, 4, 5}) {
      Layer<Element> layer(rows, k, 11);
      ASSERT_TRUE(layer.run(isa, true));
      for (int64_t i = 0; i < rows * 11; ++i) {
        const int64_t row = i / 11, column = i % 11;
        const double bias = to_float(layer.bias[1 + column]), scale = layer.scale[column];
        double want = bias, size = std::abs(bias);
        for (int64_t j = 0; j < k; ++j) {
          const double product = to_float(layer.x_at(row, j)) * scale * layer.trit(column, j);
          want += product;
          size += std::abs(product);
        }
        const double error = static_cast<double>(k + 2) * 0x1p-23 * size;
        ASSERT_LE(std::abs(layer.out_at(row, column) - want),
                  error + relative * (std::abs(want) + error) + absolute)
            << rows << " x " << k << ", element " << i;
      }
    }
  }
}

TEST_P(TernaryLinearTest, ExactKeepsItsBound) {
  keeps_the_exact_bound<float>(GetParam(), 0, 0);
  keeps_the_exact_bound<Half>(GetParam(), 0x1p-11, 0x1p-25);
  keeps_the_exact_bound<BFloat16>(GetParam(), 0x1p-8, 0);
}

TEST_P(TernaryLinearTest, ExactLeavesOutWhatMeetsZeros) {
  Layer<float> layer(4, 100, 5);
  for (int64_t row = 0; row < 4; ++row) layer.x_at(row, 37) = row % 2 ? kNan : kInfinity;
  for (int64_t column = 0; column < 5; ++column) layer.set(column, 37, column == 3 ? -1 : 0);
  layer.run(GetParam(), true);
  for (int64_t i = 0; i < 20; ++i) {
    const float got = layer.out_at(i / 5, i % 5);
    const bool want = i % 5 != 3  ? std::isfinite(got)
                      : i / 5 % 2 ? std::isnan(got)
                                  : got == -kInfinity;
    EXPECT_TRUE(want) << i << ": " << got;
  }
}

TEST_P(TernaryLinearTest, FillsOnlyItsColumns) {
  Layer<float> whole(3, 100, 50), parts(3, 100, 50);
  whole.run(GetParam());
  int64_t done = 0;
  for (const int64_t end : {0, 1, 9, 9, 30, 50}) {
    parts.run(GetParam(), false, false, done, end);
    done = end;
    for (int64_t i = 0; i < 150; ++i) {
      ASSERT_EQ(parts.out_at(i / 50, i % 50),
                i % 50 < done ? whole.out_at(i / 50, i % 50) : kGuard);
    }
  }
}

TEST_P(TernaryLinearTest, LevelsBelowTheirOwnVersionTakeTheNextLower_case54) {
  const auto columns = [](Isa isa) { return ternary_kernels<float>(false, isa).columns; };
  if (GetParam() == Isa::avx512) {
    EXPECT_EQ(columns(Isa::avx512), columns(Isa::avx2));
  } else if (GetParam() != Isa::scalar) {
    EXPECT_NE(columns(GetParam()), columns(Isa::scalar));
  }
  if (GetParam() == Isa::avx512_vnni) {
    EXPECT_NE(columns(Isa::avx512_vnni), columns(Isa::avx512));
  }
}

TEST(AllFinite, SeesEveryElement) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (int64_t at = 0; at < 40; ++at) {
      std::vector<float> values(40, -1e38f);
      EXPECT_TRUE(all_finite(values.data(), 40));
      values[at] = bad;
      EXPECT_FALSE(all_finite(values.data(), 40));
      EXPECT_TRUE(all_finite(values.data(), at));
    }
  }
}

}  // namespace
}  // namespace aegis::kernels
