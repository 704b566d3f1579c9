// float16, bfloat16 and float8 (E4M3) as raw bits, to and from float: on the CPU by integer
// arithmetic, in device code by the hardware's instructions. Both give the same bits, NaN payloads
// aside.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace aegis::kernels {
namespace bits {

inline uint32_t of(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

inline float as_float(uint32_t word) {
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

/// The upper part of `word`, without its lowest `drop` bits, rounded to nearest, ties to even.
inline uint32_t round_off(uint32_t word, int drop) {
  const uint32_t half = (1u << (drop - 1)) - 1;
  return (word + half + (word >> drop & 1)) >> drop;
}

/// `magnitude` in units of the last place of `anchor`, a power of two, rounded to nearest even by
/// the addition itself.
inline uint32_t in_units(float magnitude, float anchor) {
  return of(magnitude + anchor) - of(anchor);
}

constexpr uint32_t kInfinity = 0x7f800000;

}  // namespace bits

/// Exact.
AEGIS_HOST_DEVICE inline float half_to_float(uint16_t half) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(half));
#else
  const uint32_t sign = uint32_t{half} >> 15 << 31, magnitude = half & 0x7fffu;
  if (magnitude < 0x0400) return bits::as_float(sign | bits::of(magnitude * 0x1p-24f));
  const uint32_t bias = magnitude < 0x7c00 ? 127 - 15 : 255 - 31;
  return bits::as_float(sign | ((magnitude << 13) + (bias << 23)));
#endif
}

/// Rounds to nearest even; beyond 65504 to infinity; NaN becomes 0x7fff.
AEGIS_HOST_DEVICE inline uint16_t float_to_half(float value) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(value));
#else
  const uint32_t word = bits::of(value), magnitude = word & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>(word >> 31 << 15);
  if (magnitude > bits::kInfinity) return 0x7fff;
  if (magnitude >= bits::of(0x1p16f)) return sign | 0x7c00;
  if (magnitude < bits::of(0x1p-14f)) {  // multiples of 2^-24
    return static_cast<uint16_t>(sign | bits::in_units(bits::as_float(magnitude), 0.5f));
  }
  return static_cast<uint16_t>(sign | bits::round_off(magnitude - ((127u - 15) << 23), 13));
#endif
}

/// Exact.
AEGIS_HOST_DEVICE inline float bfloat16_to_float(uint16_t bfloat16) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(uint32_t{bfloat16} << 16);
#else
  return bits::as_float(uint32_t{bfloat16} << 16);
#endif
}

/// Rounds to nearest even; NaN becomes 0x7fff.
AEGIS_HOST_DEVICE inline uint16_t float_to_bfloat16(float value) {
#ifdef __CUDA_ARCH__
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  const uint32_t word = bits::of(value);
  if ((word & 0x7fffffffu) > bits::kInfinity) return 0x7fff;
  return static_cast<uint16_t>(bits::round_off(word, 16));
#endif
}

/// E4M3 without infinities (torch's float8_e4m3fn). Exact.
AEGIS_HOST_DEVICE inline float e4m3_to_float(uint8_t e4m3) {
#ifdef __CUDA_ARCH__
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(e4m3, __NV_E4M3)));
#else
  const uint32_t sign = uint32_t{e4m3} >> 7 << 31, magnitude = e4m3 & 0x7fu;
  if (magnitude == 0x7f) return bits::as_float(sign | 0x7fc00000);
  if (magnitude < 0x08) return bits::as_float(sign | bits::of(magnitude * 0x1p-9f));
  return bits::as_float(sign | ((magnitude << 20) + ((127u - 7) << 23)));
#endif
}

/// Rounds to nearest even; beyond 448, infinities included, to +-448; NaN becomes 0x7f.
AEGIS_HOST_DEVICE inline uint8_t float_to_e4m3(float value) {
#ifdef __CUDA_ARCH__
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
#else
  const uint32_t word = bits::of(value), magnitude = word & 0x7fffffffu;
  const auto sign = static_cast<uint8_t>(word >> 31 << 7);
  if (magnitude > bits::kInfinity) return 0x7f;
  if (magnitude >= bits::of(448.0f)) return sign | 0x7e;
  if (magnitude < bits::of(0x1p-6f)) {  // multiples of 2^-9
    return static_cast<uint8_t>(sign | bits::in_units(bits::as_float(magnitude), 0x1p14f));
  }
  return static_cast<uint8_t>(sign | bits::round_off(magnitude - ((127u - 7) << 23), 20));
#endif
}

}  // namespace aegis::kernels
