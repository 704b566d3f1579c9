// The CUDA kernels and their launchers against exact sums, within the contract's bound.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/float8_linear.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::kernels {
namespace {

using simt::DeviceBuffer;

class Float8LinearTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(Float8LinearTest);

template <class Element>
constexpr Float8Result kType = Float8Result::float32;
template <>
constexpr Float8Result kType<Half> = Float8Result::float16;
template <>
constexpr Float8Result kType<BFloat16> = Float8Result::bfloat16;

template <class Element = float>
struct Layer {
  int64_t rows, k, n, stride, group, groups;
  std::vector<uint8_t> x, weight;
  std::vector<float> x_scale, weight_scale;
  std::vector<Element> bias;
  unsigned grid = 0;  // 0: as the launcher has it

  Layer(int64_t rows, int64_t k, int64_t n, bool blocks, int64_t gap)
      : rows(rows), k(k), n(n), stride(k + gap) {
    group = blocks ? kFloat8Block : std::max(k, int64_t{1});
    groups = blocks ? (k + group - 1) / group : 1;
    std::mt19937 random(static_cast<unsigned>(rows + 9 * k + 1000 * n));
    const auto code = [&] { return static_cast<uint8_t>(random() % 0x70 | (random() & 0x80)); };
    const auto scale = [&] { return std::ldexp(1 + 0.1f * (random() % 9), random() % 7); };
    for (int64_t i = 0; i < rows * k; ++i) x.push_back(code());
    weight.assign(n * stride, 0x7f);  // NaN between the rows
    for (int64_t i = 0; i < n * k; ++i) weight[i / k * stride + i % k] = code();
    for (int64_t i = 0; i < rows * groups; ++i) x_scale.push_back(scale());
    for (int64_t i = 0; i < n * groups; ++i) weight_scale.push_back(scale());
    for (int64_t i = 0; i < n; ++i) {
      bias.push_back(from_float<Element>(static_cast<float>(random() % 100)));
    }
  }

  std::vector<Element> on_device(bool with_bias, size_t shift) const {
    const int64_t padded = cuda::float8_spread_stride(k);
    std::vector<uint16_t> spread(rows * padded, 0x7fff);
    for (int64_t i = 0; i < rows * k; ++i) {
      spread[i / k * padded + i % k] = from_float<BFloat16>(e4m3_to_float(x[i])).bits;
    }
    DeviceBuffer<uint16_t> xs("x", spread);
    DeviceBuffer<float> x_scales("x_scale", x_scale, shift);
    DeviceBuffer<uint8_t> weights("weight", weight, shift);
    DeviceBuffer<float> scales("weight_scale", weight_scale, shift);
    DeviceBuffer<Element> biases("bias", bias, shift), out("out", rows * n, shift);
    const Float8Linear job{xs.data(),
                           x_scales.data(),
                           weights.data(),
                           stride,
                           scales.data(),
                           with_bias ? biases.data() : nullptr,
                           out.data(),
                           kType<Element>,
                           rows,
                           k,
                           n,
                           group,
                           groups};
    if (grid == 0) {
      cuda::launch_float8_linear(job, nullptr);
    } else {
      cuda::launch("float8_linear", cuda::float8_linear<4>, grid, cuda::kFloat8LinearThreads, 0,
                   nullptr, job);
    }
    return out.values();
  }

  std::pair<double, double> exact(int64_t row, int64_t column, bool with_bias) const {
    double sum = with_bias ? to_float(bias[column]) : 0, size = std::abs(sum);
    for (int64_t i = 0; i < k; ++i) {
      const double product =
          double{e4m3_to_float(x[row * k + i])} * e4m3_to_float(weight[column * stride + i]) *
          x_scale[row * groups + i / group] * weight_scale[column * groups + i / group];
      sum += product;
      size += std::abs(product);
    }
    return {sum, size};
  }

  void expect_bound(bool with_bias, size_t shift) const {
    constexpr double kRoundoff = sizeof(Element) == 4            ? 0
                                 : std::is_same_v<Element, Half> ? 0x1p-11
                                                                 : 0x1p-8;
    const std::vector<Element> got = on_device(with_bias, shift);
    for (int64_t i = 0; i < rows * n; ++i) {
      const auto [want, size] = exact(i / n, i % n, with_bias);
      const double error = (160 + static_cast<double>(k) / 128) * 0x1p-24 * size;
      if (std::is_same_v<Element, Half> && std::abs(want) + error > 65504) continue;
      ASSERT_LE(std::abs(to_float(got[i]) - want),
                error + kRoundoff * (std::abs(want) + error) + 0x1p-25)
          << rows << " rows, k " << k << ", n " << n << ", shift " << shift << ", element " << i;
    }
  }
};

TEST_P(Float8LinearTest, EveryNumberOfRows) {
  for (int64_t rows = 0; rows <= cuda::kFloat8GemvRows; ++rows) {
    Layer<>(rows, 130, 5, rows % 2, 0).expect_bound(true, 0);
  }
}

TEST_P(Float8LinearTest, EveryShape) {
  for (int64_t k : {1, 15, 16, 128, 129, 530}) {
    for (bool blocks : {false, true}) {
      Layer<>(2, k, 6, blocks, 0).expect_bound(k % 2, 0);
      Layer<>(1, k, 3, blocks, 7).expect_bound(k % 2, 3);  // nothing aligned
      Layer<>(1, k, 9, blocks, 16 - k % 16).expect_bound(true, 16);
    }
  }
}

TEST_P(Float8LinearTest, HalfResults) {
  Layer<Half>(3, 3, 7, false, 0).expect_bound(true, 1);
  Layer<BFloat16>(3, 200, 7, true, 0).expect_bound(true, 1);
}

// In one order of threads: lanes do not meet before their last sum. (All pairs are gone through in
// tests/cpp/kernels.)
TEST(Float8LinearValuesTest, EveryWeightWithSixteenInputs) {
  Layer<> layer(cuda::kFloat8GemvRows, 1, 256, false, 0);
  layer.x_scale.assign(layer.rows, 1);
  layer.weight_scale.assign(256, 1);
  for (int i = 0; i < layer.rows; ++i) layer.x[i] = static_cast<uint8_t>(i * 17);
  for (int i = 0; i < 256; ++i) layer.weight[i] = static_cast<uint8_t>(i);
  const std::vector<float> got = layer.on_device(false, 0);
  for (int i = 0; i < layer.rows * 256; ++i) {
    const float want = e4m3_to_float(layer.x[i / 256]) * e4m3_to_float(i % 256);
    ASSERT_TRUE(std::isnan(want) ? std::isnan(got[i]) : got[i] == want) << i;
  }
}

TEST_P(Float8LinearTest, MoreColumnsThanWarps) {
  Layer<> layer(3, 130, 21, true, 0);
  layer.grid = 2;
  layer.expect_bound(true, 0);
}

template <class Element>
void expect_rescaled() {
  const Layer<Element> layer(3, 1, 70, false, 0);
  std::vector<float> products;
  for (int i = 0; i < 3 * 70; ++i) products.push_back(static_cast<float>(i % 13 - 6));
  DeviceBuffer<float> from("products", products), x_scale("x_scale", layer.x_scale),
      weight_scale("weight_scale", layer.weight_scale);
  DeviceBuffer<Element> bias("bias", layer.bias), out("out", products.size());
  const Float8Linear job{nullptr,
                         x_scale.data(),
                         nullptr,
                         1,
                         weight_scale.data(),
                         bias.data(),
                         out.data(),
                         kType<Element>,
                         3,
                         1,
                         70,
                         1,
                         1};
  cuda::launch_float8_rescale(job, from.data(), nullptr);
  const std::vector<Element> got = out.values();
  for (int i = 0; i < 3 * 70; ++i) {
    const float want = products[i] * (layer.x_scale[i / 70] * layer.weight_scale[i % 70]) +
                       to_float(layer.bias[i % 70]);
    ASSERT_EQ(to_float(got[i]), to_float(from_float<Element>(want))) << i;
  }
  // More elements than threads.
  DeviceBuffer<Element> again("out", products.size());
  Float8Linear small = job;
  small.out = again.data();
  cuda::launch("float8_rescale", cuda::float8_rescale, 2, 32, 0, nullptr, small,
               static_cast<const float*>(from.data()));
  for (int i = 0; i < 3 * 70; ++i) ASSERT_EQ(to_float(again.values()[i]), to_float(got[i])) << i;
}

TEST_P(Float8LinearTest, RescalesProducts) {
  expect_rescaled<float>();
  expect_rescaled<Half>();
  expect_rescaled<BFloat16>();
}

}  // namespace
}  // namespace aegis::kernels
