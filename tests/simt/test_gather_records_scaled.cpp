// The CUDA kernel and its launcher against the scalar oracle.
#include <random>
#include <vector>

#include "kernels/cuda/gather_records_scaled.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::kernels {

namespace scalar {
template <class Out>
void gather_records_scaled(const GatherRecordsScaled<Out>& job);
}

namespace {

using simt::DeviceBuffer;

class GatherRecordsScaledTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(GatherRecordsScaledTest);

struct Case {
  int64_t rows;
  int64_t channels;
  int64_t channel_size;
  std::vector<uint8_t> source;
  std::vector<float> scale;
  std::vector<float> bias;

  Case(int64_t rows, int64_t channels, int64_t channel_size)
      : rows(rows), channels(channels), channel_size(channel_size) {
    std::mt19937 random(static_cast<unsigned>(channels * 1000 + channel_size));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * row(); ++i) source.push_back(static_cast<uint8_t>(random()));
    for (int64_t c = 0; c < channels; ++c) {
      scale.push_back(normal(random) / 255);
      bias.push_back(normal(random));
    }
  }

  int64_t row() const { return channels * channel_size; }

  template <class Out>
  std::vector<Out> on_device(const std::vector<int64_t>& indices) const {
    const auto batch = static_cast<int64_t>(indices.size());
    DeviceBuffer<uint8_t> from("source", source, 3);
    DeviceBuffer<float> a("scale", scale), b("bias", bias);
    DeviceBuffer<int64_t> asked("indices", indices);
    DeviceBuffer<Out> out("out", batch * row(), 1);
    cuda::launch_gather_records_scaled<Out>({from.data(), row(), channels, channel_size, a.data(),
                                             b.data(), asked.data(), batch, out.data()},
                                            rows, nullptr);
    return out.values();
  }

  template <class Out>
  std::vector<Out> by_oracle(const std::vector<int64_t>& indices) const {
    std::vector<Out> out(indices.size() * row());
    scalar::gather_records_scaled<Out>({source.data(), row(), channels, channel_size, scale.data(),
                                        bias.data(), indices.data(),
                                        static_cast<int64_t>(indices.size()), out.data()});
    return out;
  }
};

TEST_P(GatherRecordsScaledTest, SameBitsAsTheOracle) {
  for (int64_t channels : {1, 3, 40}) {
    for (int64_t size : {1, 2, 7, 33, 100, 256, 300}) {
      const Case c(5, channels, size);
      ASSERT_EQ(c.on_device<float>({4, 0, 4}), c.by_oracle<float>({4, 0, 4}))
          << channels << " x " << size;
      ASSERT_EQ(c.on_device<uint16_t>({1, 3}), c.by_oracle<uint16_t>({1, 3}))
          << channels << " x " << size;
    }
  }
}

TEST_P(GatherRecordsScaledTest, NothingToCopyLaunchesNothing) {
  EXPECT_TRUE(Case(3, 2, 4).on_device<float>({}).empty());
  EXPECT_TRUE(Case(3, 2, 0).on_device<float>({1}).empty());
  EXPECT_TRUE(Case(3, 0, 4).on_device<float>({1}).empty());
}

TEST_P(GatherRecordsScaledTest, RowsOutsideOfTheSourceBecomeZeroes) {
  const Case c(4, 3, 5);
  const std::vector<int64_t> indices{3, -1, 0, 4, INT64_MAX, INT64_MIN};
  const std::vector<float> got = c.on_device<float>(indices);
  const std::vector<float> inside = c.by_oracle<float>({3, 0});
  for (int64_t i = 0; i < 15; ++i) {
    EXPECT_EQ(got[i], inside[i]);
    EXPECT_EQ(got[30 + i], inside[15 + i]);
    for (int64_t row : {1, 3, 4, 5}) EXPECT_EQ(got[15 * row + i], 0.0f) << row;
  }
}

// In one schedule: these take long, and only the strides of the loops are at stake.
// The loop over more than a grid is the same for the race detector as any other, and takes it a
// minute.
#ifndef __SANITIZE_THREAD__
TEST(GatherRecordsScaled, MoreLinesThanTheGridHas) {
  const Case c(3, 2, 256);
  const std::vector<int64_t> indices(cuda::kMaxGridY / 2 + 3, 2);
  ASSERT_EQ(c.on_device<uint16_t>(indices), c.by_oracle<uint16_t>(indices));
}
#endif

TEST(GatherRecordsScaled, MoreValuesThanTheGridHas) {
  const Case c(1, 1, 1024 * 256 + 300);
  ASSERT_EQ(c.on_device<float>({0}), c.by_oracle<float>({0}));
}

}  // namespace
}  // namespace aegis::kernels
