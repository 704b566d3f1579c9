// gather_records_scaled: copy uint8 rows chosen by number and make each value a floating-point one.
#pragma once

#include <cstdint>

#include "core/cpu.h"

namespace aegis::kernels {

/// What a kernel reads and writes. Pointers as for GatherRecords. `Out` is float, or uint16_t for
/// the bits of bfloat16.
///
/// A value x of channel c becomes x * scale[c] + bias[c] in float, the product rounded before the
/// sum: what separate operations give, so the kernels use no fused multiply-add and must not be
/// compiled into one. bfloat16 is that float rounded to nearest, ties to even.
template <class Out>
struct GatherRecordsScaled {
  const uint8_t* source;  ///< the first byte of row 0
  int64_t row_stride;     ///< bytes from one row to the next, at least 0
  int64_t channels;
  int64_t channel_size;    ///< values of a channel in a row, one behind the other
  const float* scale;      ///< (channels,), finite
  const float* bias;       ///< (channels,), finite
  const int64_t* indices;  ///< `batch` row numbers, already checked
  int64_t batch;
  Out* out;  ///< (batch, channels, channel_size), row-major
};

template <class Out>
using GatherRecordsScaledKernel = void (*)(const GatherRecordsScaled<Out>&);

/// The fastest kernel at or below `isa`. Never null; costs a table look-up.
template <class Out>
GatherRecordsScaledKernel<Out> gather_records_scaled_kernel(Isa isa = active_isa());

/// Every type the kernels are built for: X(Out).
#define AEGIS_GATHER_RECORDS_SCALED_TYPES(X) X(float) X(uint16_t)

}  // namespace aegis::kernels
