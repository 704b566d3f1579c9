// The floating-point types of tensors, as kernels name them.
#pragma once

#include <cstdint>

#include "kernels/convert.h"

namespace aegis::kernels {

/// float16 and bfloat16: raw bits, told apart by type.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

/// Exact.
AEGIS_HOST_DEVICE inline float to_float(float value) { return value; }
AEGIS_HOST_DEVICE inline float to_float(Half value) { return half_to_float(value.bits); }
AEGIS_HOST_DEVICE inline float to_float(BFloat16 value) { return bfloat16_to_float(value.bits); }

/// Rounds to nearest even.
template <class Element>
AEGIS_HOST_DEVICE Element from_float(float value);
template <>
AEGIS_HOST_DEVICE inline float from_float(float value) {
  return value;
}
template <>
AEGIS_HOST_DEVICE inline Half from_float(float value) {
  return {float_to_half(value)};
}
template <>
AEGIS_HOST_DEVICE inline BFloat16 from_float(float value) {
  return {float_to_bfloat16(value)};
}

}  // namespace aegis::kernels
