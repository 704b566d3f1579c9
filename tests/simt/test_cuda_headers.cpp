// Where CUDA's headers are: our conversions and the shim's vector types against NVIDIA's host code.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/convert.h"

namespace shim {
#include "simt/shim/vector_types.h"
}

namespace aegis::kernels {
namespace {

float float_of(uint32_t word) {
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

void expect_same(float got, float want, uint32_t word) {
  ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << word;
}

TEST(CudaHeaders, SmallTypesToFloat) {
  for (uint32_t word = 0; word < 1u << 16; ++word) {
    const auto bits = static_cast<uint16_t>(word);
    expect_same(half_to_float(bits), __half2float(__half(__half_raw{bits})), word);
    expect_same(bfloat16_to_float(bits), __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{bits})),
                word);
  }
  for (uint32_t word = 0; word < 256; ++word) {
    const auto bits = static_cast<uint8_t>(word);
    const __half_raw half = __nv_cvt_fp8_to_halfraw(bits, __NV_E4M3);
    expect_same(e4m3_to_float(bits), __half2float(__half(half)), word);
  }
}

TEST(CudaHeaders, FloatToSmallTypes) {
  // A prime step meets every exponent and every pattern of the low bits; test_convert.cpp has the
  // points where rounding changes.
  for (uint64_t word = 0; word < uint64_t{1} << 32; word += 4099) {
    const auto bits = static_cast<uint32_t>(word);
    const float value = float_of(bits);
    ASSERT_EQ(float_to_half(value), __half_raw(__float2half_rn(value)).x) << bits;
    ASSERT_EQ(float_to_bfloat16(value), __nv_bfloat16_raw(__float2bfloat16_rn(value)).x) << bits;
    ASSERT_EQ(float_to_e4m3(value), __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3))
        << bits;
  }
}

#define AEGIS_SAME_LAYOUT(name)                               \
  static_assert(sizeof(shim::name) == sizeof(::name), #name); \
  static_assert(alignof(shim::name) == alignof(::name), #name);
#define AEGIS_SAME_LAYOUTS(name) \
  AEGIS_SAME_LAYOUT(name##1)     \
  AEGIS_SAME_LAYOUT(name##2)     \
  AEGIS_SAME_LAYOUT(name##3)     \
  AEGIS_SAME_LAYOUT(name##4)
AEGIS_SAME_LAYOUTS(char)
AEGIS_SAME_LAYOUTS(uchar)
AEGIS_SAME_LAYOUTS(short)
AEGIS_SAME_LAYOUTS(ushort)
AEGIS_SAME_LAYOUTS(int)
AEGIS_SAME_LAYOUT(uint1)
AEGIS_SAME_LAYOUT(uint2)
AEGIS_SAME_LAYOUT(uint3)
AEGIS_SAME_LAYOUT(uint4)
AEGIS_SAME_LAYOUTS(float)
AEGIS_SAME_LAYOUT(longlong2)
AEGIS_SAME_LAYOUT(ulonglong2)
AEGIS_SAME_LAYOUT(double2)
AEGIS_SAME_LAYOUT(double3)
AEGIS_SAME_LAYOUT(dim3)

}  // namespace
}  // namespace aegis::kernels
