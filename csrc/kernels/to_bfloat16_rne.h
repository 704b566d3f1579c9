// to_bfloat16_rne: float32 to bfloat16, rounded to nearest, ties to even.
#pragma once

#include <cstdint>

#include "core/cpu.h"

namespace aegis::kernels {

/// What a kernel reads and writes: `count` elements in the row-major order of `sizes`, at strides
/// in elements. `out` takes the bits of bfloat16, and no two elements of it share memory.
///
/// A NaN becomes 0x7fff, whatever its sign and payload; values beyond the largest bfloat16 become
/// infinite as IEEE 754 rounds them; denormal numbers are numbers like others, whatever the mode of
/// the processor.
struct ToBfloat16Rne {
  /// Of more than one element each; more do not fit in 64 bits.
  static constexpr int kMaxDims = 62;

  const float* x;
  uint16_t* out;
  int64_t count;
  int dims;  ///< at least 1
  int64_t sizes[kMaxDims];
  int64_t x_strides[kMaxDims];
  int64_t out_strides[kMaxDims];
};

/// Converts the elements from `begin` to before `end`.
using ToBfloat16RneKernel = void (*)(const ToBfloat16Rne&, int64_t begin, int64_t end);

/// The fastest kernel at or below `isa`. Never null; costs a table look-up.
ToBfloat16RneKernel to_bfloat16_rne_kernel(Isa isa = active_isa());

}  // namespace aegis::kernels
