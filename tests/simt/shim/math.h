// Floating-point intrinsics. The fast ones are exact here and off by a few units in the last place
// on a GPU: tests of kernels that use them compare with a tolerance.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cstdint>
#include <limits>
#include <type_traits>

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

namespace aegis::simt {

/// As the hardware converts: out of range becomes the nearest end, NaN becomes 0.
template <class Integer>
Integer saturating(double rounded) {
  if (rounded != rounded) return 0;
  constexpr double kLow = std::numeric_limits<Integer>::min();
  constexpr double kHigh = std::numeric_limits<Integer>::max();
  return static_cast<Integer>(std::clamp(rounded, kLow, kHigh));
}

inline float saturate_unit(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

}  // namespace aegis::simt

inline int __float2int_rn(float x) { return aegis::simt::saturating<int>(nearbyint(x)); }
inline int __float2int_rz(float x) { return aegis::simt::saturating<int>(trunc(x)); }
inline int __float2int_rd(float x) { return aegis::simt::saturating<int>(floor(x)); }
inline int __float2int_ru(float x) { return aegis::simt::saturating<int>(ceil(x)); }
inline unsigned __float2uint_rn(float x) { return aegis::simt::saturating<unsigned>(nearbyint(x)); }
inline unsigned __float2uint_rz(float x) { return aegis::simt::saturating<unsigned>(trunc(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return aegis::simt::saturate_unit(x); }

#if !defined(__GLIBC_PREREQ) || !__GLIBC_PREREQ(2, 42)  // which declares it itself
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
#endif

// Macros, because glibc declares functions of these names in <math.h>.
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
