#include "kernels/unpack_ternary.h"

#include <gtest/gtest.h>

#include <vector>

namespace aegis::kernels {
namespace {

TEST(UnpackTernary, GivesEveryTritItsMeaning) {
  const std::vector<uint32_t> words{0x95555555, 0b10'01'00};
  std::vector<float> out(20, 7);
  unpack_row(words.data(), 19, 0.5f, out.data());
  for (int i = 0; i < 15; ++i) EXPECT_EQ(out[i], 0.5f);
  EXPECT_EQ(out[15], -0.5f);
  EXPECT_EQ(out[16], 0);
  EXPECT_EQ(out[17], 0.5f);
  EXPECT_EQ(out[18], -0.5f);
  EXPECT_EQ(out[19], 7);
}

TEST(UnpackTernary, FindsTheFirstBadTrit) {
  std::vector<uint32_t> words{0x55555555, 0xaaaaaaaa, 0b10'01'00'01};
  EXPECT_EQ(first_bad_trit(words.data(), 36), -1);
  EXPECT_EQ(first_bad_trit(words.data(), 48), -1);
  EXPECT_EQ(first_bad_trit(words.data(), 0), -1);
  EXPECT_EQ(first_bad_trit(words.data(), 35), 35);  // is not zero, and past the end
  EXPECT_EQ(first_bad_trit(words.data(), 33), 34);
  words[2] |= 3u << 30;
  EXPECT_EQ(first_bad_trit(words.data(), 48), 47);
  words[1] |= 3u << 6;
  EXPECT_EQ(first_bad_trit(words.data(), 48), 19);
  words[0] = 0b11;
  EXPECT_EQ(first_bad_trit(words.data(), 48), 0);
}

}  // namespace
}  // namespace aegis::kernels
