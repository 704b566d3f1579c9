#include "kernels/to_bfloat16_rne.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class ToBfloat16RneTest : public EveryIsa {};
AEGIS_EVERY_ISA(ToBfloat16RneTest);

/// From the definition of rounding: the nearer of the two neighbours, of equal ones the even.
uint16_t by_definition(uint32_t word) {
  const uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  const uint32_t below = word >> 16, rest = word & 0xffffu;
  const bool up = rest > 0x8000u || (rest == 0x8000u && below % 2 == 1);
  return static_cast<uint16_t>(below + up);
}

ToBfloat16Rne dense(const std::vector<float>& x, std::vector<uint16_t>& out, int64_t skip = 0) {
  ToBfloat16Rne job{};
  job.x = x.data() + skip;
  job.out = out.data() + skip;
  job.count = static_cast<int64_t>(x.size()) - skip;
  job.dims = 1;
  job.sizes[0] = job.count;
  job.x_strides[0] = job.out_strides[0] = 1;
  return job;
}

TEST_P(ToBfloat16RneTest, IsTheNearestOfEveryUpperHalfWithEveryKindOfRest) {
  for (uint32_t rest : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    std::vector<float> x;
    for (uint32_t upper = 0; upper < 0x10000; ++upper) {
      x.push_back(std::bit_cast<float>(upper << 16 | rest));
    }
    std::vector<uint16_t> out(x.size());
    to_bfloat16_rne_kernel(GetParam())(dense(x, out), 0, static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const auto word = std::bit_cast<uint32_t>(x[i]);
      ASSERT_EQ(out[i], by_definition(word)) << std::hex << word;
    }
  }
}

/// From every place to every other, one element more on both sides than may be written.
TEST_P(ToBfloat16RneTest, EveryLengthAndBegin) {
  std::mt19937 random(1);
  std::vector<float> x(140);
  for (float& value : x) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  for (int64_t begin = 0; begin < 40; ++begin) {
    for (int64_t end = begin; end <= 139; ++end) {
      std::vector<uint16_t> out(x.size(), 77);
      to_bfloat16_rne_kernel(GetParam())(dense(x, out, 1), begin, end);
      for (int64_t i = 0; i < 140; ++i) {
        const bool inside = begin + 1 <= i && i < end + 1;
        ASSERT_EQ(out[i], inside ? by_definition(std::bit_cast<uint32_t>(x[i])) : 77)
            << begin << end;
      }
    }
  }
}

TEST_P(ToBfloat16RneTest, StridesOfBothAndAnyPartOfTheElements) {
  constexpr int64_t kSizes[3] = {3, 5, 19}, kCount = 3 * 5 * 19;
  std::mt19937 random(2);
  std::vector<float> x(3000);
  for (float& value : x) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  for (auto [inner_x, inner_out] : {std::pair{1, 1}, {2, 1}, {1, 3}, {0, 1}, {5, 1}}) {
    ToBfloat16Rne job{};
    job.x = x.data();
    job.count = kCount;
    job.dims = 3;
    const int64_t x_strides[3] = {700, 130, inner_x}, out_strides[3] = {300, 58, inner_out};
    for (int d = 0; d < 3; ++d) {
      job.sizes[d] = kSizes[d];
      job.x_strides[d] = x_strides[d];
      job.out_strides[d] = out_strides[d];
    }
    for (int64_t begin : {0, 1, 18, 19, 20, 94, 95, 200}) {
      for (int64_t end : {begin, begin + 1, begin + 19, kCount - 1, kCount}) {
        if (end > kCount) continue;
        std::vector<uint16_t> out(1000, 77), want = out;
        job.out = out.data();
        for (int64_t i = begin; i < end; ++i) {
          const int64_t a = i / 95, b = i / 19 % 5, c = i % 19;
          want[a * 300 + b * 58 + c * inner_out] =
              by_definition(std::bit_cast<uint32_t>(x[a * 700 + b * 130 + c * inner_x]));
        }
        to_bfloat16_rne_kernel(GetParam())(job, begin, end);
        ASSERT_EQ(out, want) << inner_x << inner_out << " " << begin << " to " << end;
      }
    }
  }
}

}  // namespace
}  // namespace aegis::kernels
