// What all versions of sample agree on: the exponential, and how sums are laid out.
#pragma once

#include <cstdint>

namespace aegis::kernels {

/// A weight is exp((x - peak) / temperature), computed as 2^((x - peak) * scale) by exactly these
/// operations, each rounded to float32 (`fma` once):
///
///   r = fma(x - peak, scale, kMagic)       the nearest whole number, in the low bits
///   f = fma(x - peak, scale, kMagic - r)   what is left, within ±1/2
///   p = 1 + f(c0 + f(c1 + f(c2 + f(c3 + f c4))))   by fma, innermost first
///   the weight is p with r's low bits added to the exponent; 0 unless r >= kLeast
///
/// The polynomial is the best of its degree with 1 at 0; its relative error is 1.1e-7.
struct WeightConstants {
  static constexpr float kMagic = 12582912;       // 1.5 · 2²³
  static constexpr float kLeast = 12582912 - 100;  // weights below 2⁻¹⁰⁰ are 0
  static constexpr float c0 = 0x1.62e42ap-1f, c1 = 0x1.ebf9bcp-3f, c2 = 0x1.c6b752p-5f,
                         c3 = 0x1.3cea88p-7f, c4 = 0x1.5bba14p-10f;
};

/// Weights are summed in blocks: lane i of 16 adds elements i, i + 16 ... of a block in float32,
/// then lanes i and i + 8, i + 4, i + 2, i + 1 are added. Blocks are added in order to groups, and
/// groups in order to the whole, in float64.
constexpr int64_t kSampleLanes = 16;
constexpr int64_t kSampleBlock = 256;

/// Blocks in a group: so many that there are at most kSampleGroups.
constexpr int64_t kSampleGroups = 1024;
constexpr int64_t kSampleGroupBlocks = 32;

constexpr int64_t sample_blocks(int64_t count) { return (count + kSampleBlock - 1) / kSampleBlock; }

constexpr int64_t sample_group_blocks(int64_t count) {
  const int64_t least = (sample_blocks(count) + kSampleGroups - 1) / kSampleGroups;
  return least > kSampleGroupBlocks ? least : kSampleGroupBlocks;
}

/// The most tokens that are found, sorted and drawn from without weighing all.
constexpr int64_t kSampleListed = 256;

/// Maxima are taken over sets of 64 elements: lane i of 16 has elements i, i + 16 ... of 1024.
constexpr int64_t kSampleStripe = 1024;

/// Which elements of a row count: those above `at`, and those equal to it as far as told.
struct Weighing {
  float peak, scale;
  float at;
  float floor;  ///< and of these, those whose weight is at least this
};

}  // namespace aegis::kernels
