#include "kernels/fnv_lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/fnv.h"
#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937 random(static_cast<uint32_t>(count));
  std::vector<std::byte> out(count);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

class FnvLanesTest : public EveryIsa {};

TEST_P(FnvLanesTest, EveryLaneIsAnFnvOfItsOwn) {
  const auto data = random_bytes(64 * 37 + 1);
  uint32_t lanes[kFnvLanes];
  for (int i = 0; i < kFnvLanes; ++i) lanes[i] = static_cast<uint32_t>(i) * 0x9E3779B9u;
  uint32_t want[kFnvLanes];
  std::copy_n(lanes, kFnvLanes, want);
  for (int64_t i = 0; i < 64 * 37; ++i) {
    want[i % 64] = fnv1a(want[i % 64], {data.data() + 1 + i, 1});
  }
  fnv_lanes_kernel(GetParam())(lanes, data.data() + 1, 37);
  EXPECT_TRUE(std::equal(lanes, lanes + kFnvLanes, want));
}

TEST_P(FnvLanesTest, DigestIsThatOfTheOracleForEverySize) {
  const auto data = random_bytes(1000);
  for (int64_t size = 0; size <= 300; ++size) {
    EXPECT_EQ(fnv_lanes_digest(data.data() + size, size, GetParam()),
              fnv_lanes_digest(data.data() + size, size, Isa::scalar))
        << size;
  }
}

TEST_P(FnvLanesTest, EveryByteCounts) {
  auto data = random_bytes(200);
  const uint32_t before = fnv_lanes_digest(data.data(), 200, GetParam());
  for (std::byte& byte : data) {
    byte ^= std::byte{0x10};
    EXPECT_NE(fnv_lanes_digest(data.data(), 200, GetParam()), before);
    byte ^= std::byte{0x10};
  }
  EXPECT_NE(fnv_lanes_digest(data.data(), 199, GetParam()), before);
}

AEGIS_EVERY_ISA(FnvLanesTest);

}  // namespace
}  // namespace aegis::kernels
