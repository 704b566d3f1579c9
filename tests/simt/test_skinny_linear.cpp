// The CUDA kernel and its launcher against exact sums, and against the contract's bound.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/skinny_linear.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::kernels {
namespace {

using simt::DeviceBuffer;

class SkinnyLinearTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(SkinnyLinearTest);

template <class Element>
struct Layer {
  int64_t rows, k, n, stride;
  std::vector<Element> x, weight, bias;
  unsigned blocks = 0;  // 0: as many as the launcher has

  /// Elements drawn by `value`; NaN between the rows of weights.
  template <class Value>
  Layer(int64_t rows, int64_t k, int64_t n, int64_t gap, Value&& value)
      : rows(rows), k(k), n(n), stride(k + gap) {
    const auto draw = [&] { return from_float<Element>(value()); };
    for (int64_t i = 0; i < rows * k; ++i) x.push_back(draw());
    const float nan = std::numeric_limits<float>::quiet_NaN();
    weight.assign(n * stride, from_float<Element>(nan));
    for (int64_t i = 0; i < n * k; ++i) weight[i / k * stride + i % k] = draw();
    for (int64_t i = 0; i < n; ++i) bias.push_back(draw());
  }

  /// Every buffer begins `shift` elements past an aligned address.
  std::vector<Element> on_device(bool with_bias, size_t shift) const {
    DeviceBuffer<Element> xs("x", x, shift), weights("weight", weight, shift),
        biases("bias", bias, shift), out("out", static_cast<size_t>(rows * n), shift);
    const SkinnyLinear<Element> job{
        xs.data(),  weights.data(), stride, with_bias ? biases.data() : nullptr,
        out.data(), rows,           k,      n};
    if (blocks == 0) {
      cuda::launch_skinny_linear(job, nullptr);
    } else {
      cuda::launch("skinny_linear", cuda::skinny_linear<Element, 4>, blocks, cuda::kSkinnyThreads,
                   0, nullptr, job);
    }
    return out.values();
  }

  /// The exact result and Σ|x·w| + |bias|.
  std::pair<double, double> exact(int64_t row, int64_t column, bool with_bias) const {
    double sum = with_bias ? to_float(bias[column]) : 0, size = std::abs(sum);
    for (int64_t i = 0; i < k; ++i) {
      const double product =
          double{to_float(x[row * k + i])} * to_float(weight[column * stride + i]);
      sum += product;
      size += std::abs(product);
    }
    return {sum, size};
  }
};

/// Small whole numbers, whose sums are exact in every order.
template <class Element>
void expect_exact(int64_t rows, int64_t k, int64_t n, int64_t gap, size_t shift) {
  std::mt19937 random(static_cast<unsigned>(rows + 9 * k + 1000 * n));
  const Layer<Element> layer(
      rows, k, n, gap, [&] { return static_cast<float>(static_cast<int>(random() % 9) - 4); });
  const bool with_bias = (k + n) % 2;
  const std::vector<Element> got = layer.on_device(with_bias, shift);
  for (int64_t i = 0; i < rows * n; ++i) {
    const double want = layer.exact(i / n, i % n, with_bias).first;
    ASSERT_EQ(to_float(got[i]), to_float(from_float<Element>(static_cast<float>(want))))
        << rows << " rows, k " << k << ", n " << n << ", gap " << gap << ", shift " << shift
        << ", element " << i;
  }
}

template <class Element>
void every_shape() {
  for (int64_t rows = 0; rows <= kSkinnyRows; ++rows) {
    for (int64_t k : {1, 7, 8, 31, 64, 257}) expect_exact<Element>(rows, k, 5, 0, 0);
  }
  for (int64_t n : {1, 3, 4, 33}) expect_exact<Element>(2, 40, n, 0, 0);
}

template <class Element>
void unaligned_and_strided() {
  for (int64_t k : {8, 64, 300}) {
    for (int64_t gap : {0, 1, 8}) {
      for (size_t shift : {0, 1, 4}) expect_exact<Element>(3, k, 6, gap, shift);
    }
  }
}

template <class Element>
void keeps_the_bound(double roundoff) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int64_t k : {1, 100, 1030}) {
    const Layer<Element> layer(4, k, 3, 0, [&] { return normal(random); });
    const std::vector<Element> got = layer.on_device(true, 0);
    for (int64_t i = 0; i < 12; ++i) {
      const auto [want, size] = layer.exact(i / 3, i % 3, true);
      const double sum_error = static_cast<double>(k) * 0x1p-23 * size;
      EXPECT_LE(std::abs(to_float(got[i]) - want),
                sum_error + roundoff * (std::abs(want) + sum_error) + 0x1p-25)
          << "k " << k << ", element " << i;
    }
  }
}

TEST_P(SkinnyLinearTest, EveryShape_float) { every_shape<float>(); }
TEST_P(SkinnyLinearTest, EveryShape_Half) { every_shape<Half>(); }
TEST_P(SkinnyLinearTest, EveryShape_BFloat16) { every_shape<BFloat16>(); }
TEST_P(SkinnyLinearTest, UnalignedAndStrided_float) { unaligned_and_strided<float>(); }
TEST_P(SkinnyLinearTest, UnalignedAndStrided_Half) { unaligned_and_strided<Half>(); }
TEST_P(SkinnyLinearTest, UnalignedAndStrided_BFloat16) { unaligned_and_strided<BFloat16>(); }
TEST_P(SkinnyLinearTest, KeepsTheBound_float) { keeps_the_bound<float>(0); }
TEST_P(SkinnyLinearTest, KeepsTheBound_Half) { keeps_the_bound<Half>(0x1p-11); }
TEST_P(SkinnyLinearTest, KeepsTheBound_BFloat16) { keeps_the_bound<BFloat16>(0x1p-8); }

TEST_P(SkinnyLinearTest, MoreColumnsThanWarps) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  Layer<float> layer(3, 40, 21, 0, [&] { return normal(random); });
  const std::vector<float> want = layer.on_device(true, 0);
  layer.blocks = 2;
  EXPECT_EQ(layer.on_device(true, 0), want);
}

TEST_P(SkinnyLinearTest, NanAndInfinityGoThrough) {
  Layer<float> layer(2, 70, 3, 0, [] { return 1.0f; });
  layer.x[69] = std::numeric_limits<float>::quiet_NaN();
  layer.weight[70 + 3] = std::numeric_limits<float>::infinity();
  const std::vector<float> got = layer.on_device(false, 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(got[i])) << got[i];
  EXPECT_EQ(got[3], 70);
  EXPECT_EQ(got[4], std::numeric_limits<float>::infinity());
  EXPECT_EQ(got[5], 70);
}

}  // namespace
}  // namespace aegis::kernels
