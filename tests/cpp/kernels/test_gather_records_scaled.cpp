#include "kernels/gather_records_scaled.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class GatherRecordsScaledTest : public EveryIsa {};
AEGIS_EVERY_ISA(GatherRecordsScaledTest);

struct Case {
  int64_t channels;
  int64_t channel_size;
  std::vector<float> scale;
  std::vector<float> bias;
  std::vector<uint8_t> source;
  std::vector<int64_t> indices;

  int64_t row() const { return channels * channel_size; }
};

Case random_case(int64_t channels, int64_t channel_size) {
  constexpr int64_t kRows = 11;
  std::mt19937 random(static_cast<unsigned>(channels * 1000 + channel_size));
  std::normal_distribution<float> normal;
  Case made{channels, channel_size, {}, {}, std::vector<uint8_t>(kRows * channels * channel_size),
            {}};
  for (int64_t c = 0; c < channels; ++c) {
    made.scale.push_back(normal(random) / 255);
    made.bias.push_back(normal(random));
  }
  for (uint8_t& value : made.source) value = static_cast<uint8_t>(random());
  for (int i = 0; i < 9; ++i) made.indices.push_back(random() % kRows);
  return made;
}

/// One value more than the result: a kernel that writes past the end changes it.
template <class Out>
std::vector<Out> run(Isa isa, const Case& c) {
  std::vector<Out> out(c.indices.size() * c.row() + 1, Out{77});
  gather_records_scaled_kernel<Out>(isa)({c.source.data(), c.row(), c.channels, c.channel_size,
                                          c.scale.data(), c.bias.data(), c.indices.data(),
                                          static_cast<int64_t>(c.indices.size()), out.data()});
  return out;
}

TEST_P(GatherRecordsScaledTest, SameBitsAsTheOracle) {
  for (int64_t channels : {1, 2, 3, 5, 16, 17, 40}) {
    for (int64_t size : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100}) {
      const Case c = random_case(channels, size);
      ASSERT_EQ(run<float>(GetParam(), c), run<float>(Isa::scalar, c)) << channels << " x " << size;
      ASSERT_EQ(run<uint16_t>(GetParam(), c), run<uint16_t>(Isa::scalar, c))
          << channels << " x " << size;
    }
  }
}

TEST_P(GatherRecordsScaledTest, ProductIsRoundedBeforeTheSum) {
  // 3 * (1/3 + ulp) - 1: a fused multiply-add would keep the bits that the product loses.
  Case c{1, 256, {0.33333334f}, {-1.0f}, {}, {0}};
  for (int v = 0; v < 256; ++v) c.source.push_back(static_cast<uint8_t>(v));
  const std::vector<float> got = run<float>(GetParam(), c);
  int differ = 0;
  for (int v = 0; v < 256; ++v) {
    const volatile float product = static_cast<float>(v) * c.scale[0];
    const volatile float sum = product + c.bias[0];
    ASSERT_EQ(got[v], sum) << v;
    differ += sum != std::fma(static_cast<float>(v), c.scale[0], c.bias[0]);
  }
  EXPECT_GT(differ, 0);  // the case can tell the two apart
}

TEST_P(GatherRecordsScaledTest, BfloatIsRoundedToNearestEven) {
  // 1 + v/256 with 7 bits behind the point: ties at odd v.
  Case c{1, 256, {1.0f / 256}, {1.0f}, {}, {0}};
  for (int v = 0; v < 256; ++v) c.source.push_back(static_cast<uint8_t>(v));
  const std::vector<uint16_t> got = run<uint16_t>(GetParam(), c);
  for (int v = 0; v < 256; ++v) {
    const int nearest = v % 2 == 0 ? v / 2 : v / 2 + (v / 2) % 2;  // to the even neighbour
    ASSERT_EQ(got[v], 0x3f80 + nearest) << v;
  }
}

TEST_P(GatherRecordsScaledTest, BfloatKeepsDenormalsAndRoundsToInfinity) {
  const float tiny = std::bit_cast<float>(0x00010000u);  // bfloat16's least denormal
  const Case small{1, 2, {tiny}, {0.0f}, {1, 3}, {0}};
  EXPECT_EQ(run<uint16_t>(GetParam(), small), (std::vector<uint16_t>{1, 3, 77}));
  const Case large{1, 2, {3e38f}, {0.0f}, {1, 255}, {0}};
  EXPECT_EQ(run<uint16_t>(GetParam(), large), (std::vector<uint16_t>{0x7f62, 0x7f80, 77}));
}

template <class Out>
void compare_large(Isa isa, int64_t channels, int64_t channel_size) {
  Case c = random_case(channels, channel_size);
  c.indices.resize((int64_t{34} << 20) / (c.row() * static_cast<int64_t>(sizeof(Out))), 3);
  const auto result = [&](Isa which) {
    // From the start of a line, as in a slot.
    std::vector<Out> memory(c.indices.size() * c.row() + 64);
    const size_t bytes = 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
    gather_records_scaled_kernel<Out>(which)({c.source.data(), c.row(), c.channels, c.channel_size,
                                              c.scale.data(), c.bias.data(), c.indices.data(),
                                              static_cast<int64_t>(c.indices.size()),
                                              memory.data() + bytes / sizeof(Out)});
    memory.erase(memory.begin(), memory.begin() + static_cast<int64_t>(bytes / sizeof(Out)));
    memory.resize(c.indices.size() * c.row());
    return memory;
  };
  EXPECT_TRUE(result(isa) == result(Isa::scalar)) << channels << " x " << channel_size;
}

TEST_P(GatherRecordsScaledTest, BatchesLargerThanTheCaches) {
  compare_large<float>(GetParam(), 3, 1024);
  compare_large<uint16_t>(GetParam(), 64, 1);
  compare_large<float>(GetParam(), 3, 1023);  // lines are not whole
}

TEST_P(GatherRecordsScaledTest, RowsMayLieApart) {
  Case c = random_case(3, 5);
  std::vector<uint8_t> apart(11 * 20);
  for (int row = 0; row < 11; ++row) {
    for (int i = 0; i < 15; ++i) apart[row * 20 + i] = c.source[row * 15 + i];
  }
  std::vector<float> out(9 * 15 + 1, 77.0f);
  gather_records_scaled_kernel<float>(GetParam())(
      {apart.data(), 20, 3, 5, c.scale.data(), c.bias.data(), c.indices.data(), 9, out.data()});
  EXPECT_EQ(out, run<float>(Isa::scalar, c));
}

}  // namespace
}  // namespace aegis::kernels
