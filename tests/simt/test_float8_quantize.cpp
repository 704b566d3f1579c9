// The CUDA kernel and its launcher against the scalar oracle.
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/float8_quantize.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::kernels {

namespace scalar {
template <class Element>
void float8_quantize(const Float8Quantize<Element>& job, int64_t begin, int64_t end);
}

namespace {

using simt::DeviceBuffer;

class Float8QuantizeTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(Float8QuantizeTest);

template <class Element>
void expect_oracle(int64_t rows, int64_t k, bool blocks, size_t shift) {
  const int64_t group = blocks ? kFloat8Block : std::max(k, int64_t{1});
  const int64_t groups = blocks ? (k + group - 1) / group : 1;
  std::mt19937 random(static_cast<unsigned>(rows + 7 * k));
  std::normal_distribution<float> normal;
  std::vector<Element> x;
  for (int64_t i = 0; i < rows * k; ++i) {
    const unsigned kind = random() % 40;
    x.push_back(from_float<Element>(kind == 0    ? std::numeric_limits<float>::infinity()
                                    : kind == 1  ? std::numeric_limits<float>::quiet_NaN()
                                    : i / k == 1 ? 0.0f
                                                 : normal(random)));
  }
  std::vector<uint8_t> want_values(x.size());
  std::vector<float> want_scales(rows * groups);
  scalar::float8_quantize<Element>(
      {x.data(), want_values.data(), want_scales.data(), rows, k, group, groups}, 0, rows);

  const int64_t stride = cuda::float8_spread_stride(k);
  DeviceBuffer<Element> from("x", x, shift);
  DeviceBuffer<uint8_t> values("values", x.size(), shift);
  DeviceBuffer<float> scales("scales", want_scales.size(), shift);
  DeviceBuffer<uint16_t> spread("spread", rows * stride);
  const Float8Quantize<Element> job{from.data(), values.data(), scales.data(), rows,
                                    k,           group,         groups};
  cuda::launch_float8_quantize<Element>(job, reinterpret_cast<BFloat16*>(spread.data()), nullptr);
  EXPECT_EQ(scales.values(), want_scales) << rows << " x " << k;
  EXPECT_EQ(values.values(), want_values) << rows << " x " << k;
  const std::vector<uint16_t> got = spread.values();
  for (int64_t i = 0; i < rows * k; ++i) {
    const float value = e4m3_to_float(want_values[i]);
    ASSERT_EQ(got[i / k * stride + i % k], from_float<BFloat16>(value).bits) << i;
  }
  cuda::launch_float8_quantize<Element>(job, nullptr, nullptr);
  EXPECT_EQ(values.values(), want_values);
}

TEST_P(Float8QuantizeTest, EqualsTheOracle) {
  for (bool blocks : {false, true}) {
    for (int64_t k : {1, 31, 32, 130, 512}) expect_oracle<float>(9, k, blocks, k % 2);
    expect_oracle<Half>(3, 100, blocks, 1);
    expect_oracle<BFloat16>(3, 300, blocks, 1);
  }
}

TEST_P(Float8QuantizeTest, BlocksOfThreadsShareLongRows) {
  expect_oracle<float>(3, 513, false, 0);
  expect_oracle<BFloat16>(2, 1030, false, 1);
}

TEST_P(Float8QuantizeTest, OneBlockTakesSeveralGroups) {
  constexpr int64_t kRows = 5, kK = 300;
  std::vector<float> x(kRows * kK, 1.0f);
  for (int64_t row = 0; row < kRows; ++row) {
    x[row * kK + 50 * row + 7] = 448.0f * static_cast<float>(1 + (row * 3) % kRows);
  }
  DeviceBuffer<float> from("x", x), scales("scales", kRows);
  DeviceBuffer<uint8_t> values("values", x.size());
  const Float8Quantize<float> job{from.data(), values.data(), scales.data(), kRows, kK, kK, 1};
  cuda::launch("float8_quantize", cuda::float8_quantize<float, cuda::kFloat8Threads / 32>, 1,
               cuda::kFloat8Threads, 0, nullptr, job, static_cast<BFloat16*>(nullptr));
  EXPECT_EQ(scales.values(), (std::vector<float>{1, 4, 2, 5, 3}));
}

TEST_P(Float8QuantizeTest, NoRowsNoElements) {
  expect_oracle<float>(0, 5, false, 0);
  expect_oracle<float>(2, 0, false, 0);
  expect_oracle<float>(2, 0, true, 0);
}

}  // namespace
}  // namespace aegis::kernels
