// float8_quantize: rows of numbers as E4M3 values and float32 scales.
#pragma once

#include <cstdint>

#include "core/cpu.h"
#include "kernels/element.h"

namespace aegis::kernels {

/// Elements that share a scale, where a whole row does not.
constexpr int64_t kFloat8Block = 128;

/// What a kernel reads and writes; all pointers are in one memory (host or one GPU), aligned to
/// their elements and no further. `Element` is float, Half or BFloat16.
///
/// Of a group, `amax` is the largest finite magnitude, and
///   scale = max(amax / 448, 2⁻¹²⁶), or 1 where amax is 0;
///   value = x / scale, rounded to E4M3 (to nearest, ties to even; infinities to ±448; NaN to NaN).
/// Every version gives the same bits.
template <class Element>
struct Float8Quantize {
  const Element* x;  ///< (rows, k), row-major
  uint8_t* values;   ///< (rows, k): E4M3
  float* scales;     ///< (rows, groups)
  int64_t rows;
  int64_t k;
  int64_t group;   ///< elements that share a scale, at least 1
  int64_t groups;  ///< scales of a row: k / group, rounded up; or 1, with group >= k
};

/// Fills rows [begin, end). Threads may share a job, each with rows of its own.
template <class Element>
using Float8QuantizeKernel = void (*)(const Float8Quantize<Element>&, int64_t begin, int64_t end);

/// The fastest kernel at or below `isa`. Never null; costs a table look-up.
template <class Element>
Float8QuantizeKernel<Element> float8_quantize_kernel(Isa isa = active_isa());

/// Every type the kernels are built for: X(Element).
#define AEGIS_FLOAT8_QUANTIZE_TYPES(X) X(float) X(Half) X(BFloat16)

// static: each instruction set compiles a copy of its own.
/// The scale of a group whose largest finite magnitude is `amax`. Never subnormal: what flushes
/// subnormal numbers to zero would divide by zero.
AEGIS_HOST_DEVICE static inline float float8_scale(float amax) {
  if (amax == 0) return 1;
  const float scale = amax / 448.0f;
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

}  // namespace aegis::kernels
