// kernels/convert.h against the definition of the formats: every value of the small types, and
// every point where rounding changes its mind.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/convert.h"

namespace aegis::kernels {
namespace {

/// A binary format: sign, exponent, fraction, with or without infinities.
struct Format {
  int exponent_bits;
  int fraction_bits;
  bool infinities;

  int bits() const { return 1 + exponent_bits + fraction_bits; }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }

  double value(uint32_t word) const {
    const int exponent = word >> fraction_bits & ((1 << exponent_bits) - 1);
    const int fraction = word & ((1 << fraction_bits) - 1);
    const double sign = word >> (bits() - 1) ? -1.0 : 1.0;
    const bool top = exponent == (1 << exponent_bits) - 1;
    if (top && infinities) return fraction ? std::nan("") : sign * INFINITY;
    if (top && fraction == (1 << fraction_bits) - 1) return std::nan("");
    const int steps = exponent ? fraction + (1 << fraction_bits) : fraction;
    return sign * std::ldexp(steps, (exponent ? exponent : 1) - bias() - fraction_bits);
  }
};

constexpr Format kHalf{5, 10, true}, kBfloat16{8, 7, true}, kE4m3{4, 3, false};

template <class ToFloat>
void check_to_float(const Format& format, ToFloat to_float) {
  for (uint32_t word = 0; word < 1u << format.bits(); ++word) {
    const double want = format.value(word);
    const float got = to_float(word);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << word;
    } else {
      ASSERT_EQ(got, want) << word;
      ASSERT_EQ(std::signbit(got), std::signbit(want)) << word;
    }
  }
}

/// For all neighbours a < b of one sign: a and b stay, all between them go to the nearer, and the
/// middle to the even one. Rounding is monotonic, so the floats around these points are enough.
template <class FromFloat>
void check_from_float(const Format& format, uint32_t last_finite, FromFloat from_float) {
  const uint32_t sign_bit = 1u << (format.bits() - 1);
  for (uint32_t word = 0; word < last_finite; ++word) {
    const double a = format.value(word), b = format.value(word + 1);
    const auto middle = static_cast<float>((a + b) / 2);  // exact: one bit more than the format
    const float below = std::nextafter(middle, 0.0f), above = std::nextafter(middle, INFINITY);
    const uint32_t even = word % 2 ? word + 1 : word;
    ASSERT_EQ(from_float(static_cast<float>(a)), word);
    ASSERT_EQ(from_float(std::nextafter(static_cast<float>(a), INFINITY)), word);
    ASSERT_EQ(from_float(below), word);
    ASSERT_EQ(from_float(middle), even);
    ASSERT_EQ(from_float(above), word + 1);
    ASSERT_EQ(from_float(std::nextafter(static_cast<float>(b), 0.0f)), word + 1);
    ASSERT_EQ(from_float(-below), sign_bit | word);
    ASSERT_EQ(from_float(-middle), sign_bit | even);
    ASSERT_EQ(from_float(-above), sign_bit | (word + 1));
  }
  ASSERT_EQ(from_float(0.0f), 0u);
  ASSERT_EQ(from_float(-0.0f), sign_bit);
}

TEST(Convert, HalfToFloatIsExact) { check_to_float(kHalf, half_to_float); }
TEST(Convert, Bfloat16ToFloatIsExact) { check_to_float(kBfloat16, bfloat16_to_float); }
TEST(Convert, E4m3ToFloatIsExact) { check_to_float(kE4m3, e4m3_to_float); }

TEST(Convert, FloatToHalfRoundsToNearestEven) {
  check_from_float(kHalf, 0x7bff, float_to_half);
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e30f), 0xfc00);
  EXPECT_EQ(float_to_half(INFINITY), 0x7c00);
  EXPECT_EQ(float_to_half(std::nanf("")), 0x7fff);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Convert, FloatToBfloat16RoundsToNearestEven) {
  check_from_float(kBfloat16, 0x7f7e, float_to_bfloat16);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bfloat16(-INFINITY), 0xff80);
  EXPECT_EQ(float_to_bfloat16(std::nanf("")), 0x7fff);
}

TEST(Convert, FloatToE4m3RoundsToNearestEvenAndSaturates) {
  check_from_float(kE4m3, 0x7e, float_to_e4m3);
  for (float large : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(float_to_e4m3(large), 0x7e) << large;
    EXPECT_EQ(float_to_e4m3(-large), 0xfe) << large;
  }
  EXPECT_EQ(float_to_e4m3(std::nanf("")), 0x7f);
}

}  // namespace
}  // namespace aegis::kernels
