#include "kernels/skinny_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/every_isa.h"
#include "last_page.h"

namespace aegis::kernels {
namespace {

class SkinnyLinearTest : public EveryIsa {};
AEGIS_EVERY_ISA(SkinnyLinearTest);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kGuard = -77;

/// The operands of one layer. What lies between rows of weights and around every operand is NaN,
/// and around the result kGuard, so that reading or writing too much is seen. No operand is aligned
/// to more than its elements.
template <class Element>
struct Layer {
  int64_t rows, k, n, stride;
  size_t before;  ///< elements in front of every operand
  std::vector<Element> x, weight, bias, out;

  Layer(int64_t rows, int64_t k, int64_t n, int64_t gap = 0, size_t before = 1)
      : rows(rows), k(k), n(n), stride(k + gap), before(before) {
    const auto fill = [&](std::vector<Element>& operand, int64_t count, float value) {
      operand.assign(before + count + 64, from_float<Element>(value));
    };
    fill(x, rows * k, kNan);
    fill(weight, n * stride, kNan);
    fill(bias, n, kNan);
    fill(out, rows * n, kGuard);
  }

  template <class Value>
  void fill(Value&& value) {
    for (int64_t i = 0; i < rows * k; ++i) x_at(i / k, i % k) = from_float<Element>(value());
    for (int64_t i = 0; i < n * k; ++i) weight_at(i / k, i % k) = from_float<Element>(value());
    for (int64_t i = 0; i < n; ++i) bias[before + i] = from_float<Element>(value());
  }

  Element& x_at(int64_t row, int64_t i) { return x[before + row * k + i]; }
  Element& weight_at(int64_t column, int64_t i) { return weight[before + column * stride + i]; }
  float out_at(int64_t row, int64_t column) const {
    return to_float(out[before + row * n + column]);
  }

  void run(Isa isa, bool with_bias = true) { run(isa, with_bias, 0, n); }
  void run(Isa isa, bool with_bias, int64_t begin, int64_t end) {
    skinny_linear_kernel<Element>(isa)(
        {x.data() + before, weight.data() + before, stride,
         with_bias ? bias.data() + before : nullptr, out.data() + before, rows, k, n},
        begin, end);
  }

  /// The exact result and Σ|x·w| + |bias|, as double.
  std::pair<double, double> exact(int64_t row, int64_t column, bool with_bias = true) {
    double sum = with_bias ? to_float(bias[before + column]) : 0, size = std::abs(sum);
    for (int64_t i = 0; i < k; ++i) {
      const double product = double{to_float(x_at(row, i))} * to_float(weight_at(column, i));
      sum += product;
      size += std::abs(product);
    }
    return {sum, size};
  }

  ::testing::AssertionResult guards_are_untouched() const {
    for (size_t i = 0; i < out.size(); ++i) {
      const bool outside = i < before || i >= before + static_cast<size_t>(rows * n);
      if (outside && to_float(out[i]) != kGuard)
        return ::testing::AssertionFailure()
               << "written: element " << static_cast<int64_t>(i - before);
    }
    return ::testing::AssertionSuccess();
  }
};

/// Small whole numbers: every sum of products is exact in float32 in whatever order it is taken, so
/// the result is known to the bit, and one element read twice, or not at all, is seen.
template <class Element>
void expect_exact(Isa isa, int64_t rows, int64_t k, int64_t n, int64_t gap, bool with_bias) {
  std::mt19937 random(static_cast<unsigned>(rows + 9 * k + 1000 * n));
  Layer<Element> layer(rows, k, n, gap, 1 + (k + n) % 7);
  layer.fill([&] { return static_cast<float>(static_cast<int>(random() % 9) - 4); });
  layer.run(isa, with_bias);
  ASSERT_TRUE(layer.guards_are_untouched()) << rows << " x " << k << " x " << n;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      const double want = layer.exact(row, column, with_bias).first;
      ASSERT_EQ(layer.out_at(row, column), to_float(from_float<Element>(static_cast<float>(want))))
          << rows << " rows, k " << k << ", n " << n << ", gap " << gap << ", at " << row << ", "
          << column;
    }
  }
}

template <class Element>
void every_size(Isa isa) {
  for (int64_t size = 1; size <= 70; ++size) {
    for (int64_t other : {1, 2, 3, 7, 8, 9, 17, 33, 64, 70}) {
      const int64_t rows = 1 + (size + other) % kSkinnyRows;
      expect_exact<Element>(isa, rows, size, other, size % 3, other % 2);
      expect_exact<Element>(isa, rows, other, size, size % 3, size % 2);
    }
  }
}

template <class Element>
void every_number_of_rows(Isa isa) {
  for (int64_t rows = 0; rows <= kSkinnyRows; ++rows) {
    for (int64_t k : {1, 15, 16, 31, 33, 64, 127, 1027}) {
      for (int64_t n : {1, 7, 8, 9, 37, 64}) expect_exact<Element>(isa, rows, k, n, 0, true);
    }
  }
}

template <class Element>
void large_odd_sizes(Isa isa) {
  expect_exact<Element>(isa, 1, 4099, 131, 0, false);
  expect_exact<Element>(isa, 8, 2053, 67, 29, true);
  expect_exact<Element>(isa, 3, 385, 1001, 0, true);
  expect_exact<Element>(isa, 5, 4096, 33, 0, false);
}

/// What rounding to a type may change in a number of size 1, and in the smallest.
template <class Element>
struct Rounding {
  static constexpr double relative = 0, absolute = 0;
};
template <>
struct Rounding<Half> {
  static constexpr double relative = 0x1p-11, absolute = 0x1p-25;
};
template <>
struct Rounding<BFloat16> {
  static constexpr double relative = 0x1p-8, absolute = 0x1p-134;
};

template <class Element>
void keeps_the_bound(Isa isa) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int64_t k : {1, 2, 13, 64, 511, 4097}) {
    for (int64_t rows : {1, 2, 3, 4, 7, 8}) {
      Layer<Element> layer(rows, k, 21, 5);
      layer.fill([&] { return normal(random); });
      layer.run(isa);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < layer.n; ++column) {
          const auto [want, size] = layer.exact(row, column);
          const double sum_error = static_cast<double>(k) * 0x1p-23 * size;
          const double bound = sum_error + Rounding<Element>::absolute +
                               Rounding<Element>::relative * (std::abs(want) + sum_error);
          ASSERT_LE(std::abs(layer.out_at(row, column) - want), bound)
              << rows << " rows, k " << k << ", at " << row << ", " << column;
        }
      }
    }
  }
}

template <class Element>
void only_its_columns(Isa isa) {
  Layer<Element> whole(3, 40, 50), parts(3, 40, 50);
  for (Layer<Element>* layer : {&whole, &parts}) {
    std::mt19937 random(4);
    layer->fill([&] { return static_cast<float>(random() % 5); });
  }
  whole.run(isa);
  int64_t done = 0;
  for (int64_t end : {0, 1, 9, 9, 30, 50}) {
    parts.run(isa, true, done, end);
    done = end;
    for (int64_t i = 0; i < 150; ++i) {
      const float want = i % 50 < done ? whole.out_at(i / 50, i % 50) : kGuard;
      ASSERT_EQ(parts.out_at(i / 50, i % 50), want) << "columns to " << end << ", element " << i;
    }
  }
}

template <class Element>
void nan_and_infinity(Isa isa) {
  for (int64_t k : {1, 16, 37, 70}) {
    Layer<Element> layer(5, k, 11);
    layer.fill([] { return 1.0f; });
    layer.x_at(1, k - 1) = from_float<Element>(kNan);
    layer.x_at(2, 0) = from_float<Element>(kInfinity);
    layer.weight_at(3, k / 2) = from_float<Element>(-kInfinity);
    layer.weight_at(4, k - 1) = from_float<Element>(kNan);
    layer.weight_at(5, 0) = from_float<Element>(0);  // times infinity
    layer.run(isa);
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t column = 0; column < 11; ++column) {
        const float want = static_cast<float>(layer.exact(row, column).first);
        const float got = layer.out_at(row, column);
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(got)) << row << ", " << column << ": " << got;
        } else {
          EXPECT_EQ(got, want) << row << ", " << column;
        }
      }
    }
  }
}

/// With k = 0 there is nothing but the bias, with no rows nothing at all.
template <class Element>
void nothing_to_add(Isa isa) {
  Layer<Element> layer(2, 0, 9, 1);
  layer.fill([] { return 3.0f; });
  layer.run(isa);
  for (int64_t i = 0; i < 18; ++i) EXPECT_EQ(layer.out_at(i / 9, i % 9), 3);
  EXPECT_TRUE(layer.guards_are_untouched());
}

template <class Element>
void reads_nothing_behind_its_operands(Isa isa) {
  LastPage x, weight, bias, out;
  const Element one = from_float<Element>(1);
  for (int64_t k = 1; k <= 70; ++k) {
    for (int64_t rows : {1, 3, 4, 8}) {
      Element* result = out.last(rows * 7, one);
      skinny_linear_kernel<Element>(isa)({x.last(rows * k, one), weight.last(7 * k, one), k,
                                          bias.last(7, one), result, rows, k, 7},
                                         0, 7);
      for (int64_t i = 0; i < rows * 7; ++i) ASSERT_EQ(to_float(result[i]), k + 1);
    }
  }
}

#define AEGIS_SKINNY_TEST(Name, function)                                 \
  TEST_P(SkinnyLinearTest, Name##_float) { function<float>(GetParam()); } \
  TEST_P(SkinnyLinearTest, Name##_Half) { function<Half>(GetParam()); }   \
  TEST_P(SkinnyLinearTest, Name##_BFloat16) { function<BFloat16>(GetParam()); }
AEGIS_SKINNY_TEST(EverySize, every_size)
AEGIS_SKINNY_TEST(EveryNumberOfRows, every_number_of_rows)
AEGIS_SKINNY_TEST(LargeOddSizes, large_odd_sizes)
AEGIS_SKINNY_TEST(KeepsTheBound, keeps_the_bound)
AEGIS_SKINNY_TEST(OnlyItsColumns, only_its_columns)
AEGIS_SKINNY_TEST(NanAndInfinity, nan_and_infinity)
AEGIS_SKINNY_TEST(NothingToAdd, nothing_to_add)
AEGIS_SKINNY_TEST(ReadsNothingBehindItsOperands, reads_nothing_behind_its_operands)
#undef AEGIS_SKINNY_TEST

/// x (1, k) with a weight of ones (1, k).
template <class Element>
Element sum_of(Isa isa, const std::vector<float>& values) {
  Layer<Element> layer(1, static_cast<int64_t>(values.size()), 1);
  layer.fill([] { return 1.0f; });
  for (size_t i = 0; i < values.size(); ++i) {
    layer.x_at(0, static_cast<int64_t>(i)) = from_float<Element>(values[i]);
  }
  layer.run(isa, false);
  return layer.out[layer.before];
}

TEST_P(SkinnyLinearTest, ResultsAreRoundedOnceToNearestEven) {
  const Isa isa = GetParam();
  EXPECT_EQ(to_float(sum_of<BFloat16>(isa, {1, 0x1p-8})), 1);
  EXPECT_EQ(to_float(sum_of<BFloat16>(isa, {1, 0x1p-7, 0x1p-8})), 1 + 0x1p-6);
  EXPECT_EQ(to_float(sum_of<BFloat16>(isa, {1, 0x1p-8, 0x1p-16})), 1 + 0x1p-7);
  EXPECT_EQ(to_float(sum_of<Half>(isa, {1, 0x1p-11})), 1);
  EXPECT_EQ(to_float(sum_of<Half>(isa, {1, 0x1p-10, 0x1p-11})), 1 + 0x1p-9);
  EXPECT_EQ(to_float(sum_of<Half>(isa, {65504, 15})), 65504);
  EXPECT_EQ(to_float(sum_of<Half>(isa, {65504, 16})), kInfinity);
  EXPECT_EQ(to_float(sum_of<Half>(isa, {-65504, -65504, 65504})), -65504);
  EXPECT_EQ(sum_of<BFloat16>(isa, {kNan}).bits, 0x7fff);
  EXPECT_EQ(sum_of<BFloat16>(isa, {kInfinity, -kInfinity}).bits, 0x7fff);
}

TEST_P(SkinnyLinearTest, SubnormalsCountExceptWithTheBFloat16Instruction) {
  const Isa isa = GetParam();
  EXPECT_EQ(sum_of<float>(isa, {0x1p-140f, 0x1p-149f}), 0x1p-140f + 0x1p-149f);
  EXPECT_EQ(to_float(sum_of<Half>(isa, {0x1p-24f, 0x1p-23f})), 0x1p-24f + 0x1p-23f);
  EXPECT_EQ(to_float(sum_of<BFloat16>(isa, {0x1p-130f, 0x1p-126f})),
            isa >= Isa::avx512_bf16 ? 0x1p-126f : 0x1p-130f + 0x1p-126f);
}

TEST_P(SkinnyLinearTest, LevelsBelowTheirOwnVersionTakeTheNextLower_case54) {
  const Isa isa = GetParam();
  if (isa == Isa::avx512_vnni || isa == Isa::avx512_bf16) {
    EXPECT_EQ(skinny_linear_kernel<float>(isa), skinny_linear_kernel<float>(Isa::avx512));
  } else if (isa != Isa::scalar) {
    EXPECT_NE(skinny_linear_kernel<float>(isa), skinny_linear_kernel<float>(Isa::scalar));
  }
  if (isa == Isa::avx512_bf16) {
    EXPECT_NE(skinny_linear_kernel<BFloat16>(isa), skinny_linear_kernel<BFloat16>(Isa::avx512));
  }
}

}  // namespace
}  // namespace aegis::kernels
