// The weight of one element, for the scalar versions.
#pragma once

#include <cmath>

#include "kernels/sample_weight.h"

namespace aegis::kernels::scalar {
namespace {  // of each file that includes it

float weight_of(float value, float peak, float scale) {
  using C = WeightConstants;
  const float below = value - peak;
  const float r = std::fma(below, scale, C::kMagic);
  const float f = std::fma(below, scale, C::kMagic - r);
  float p = std::fma(f, C::c4, C::c3);
  p = std::fma(f, p, C::c2);
  p = std::fma(f, p, C::c1);
  p = std::fma(f, p, C::c0);
  p = std::fma(f, p, 1.0f);
  if (!(r >= C::kLeast)) return 0;
  return __builtin_bit_cast(
      float, __builtin_bit_cast(uint32_t, p) + (__builtin_bit_cast(uint32_t, r) << 23));
}

}  // namespace
}  // namespace aegis::kernels::scalar
