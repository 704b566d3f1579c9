#pragma once

#include "kernels/float8_quantize.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// Elements from one row of spread values to the next: rows begin at multiples of 32 bytes.
AEGIS_HOST_DEVICE constexpr int64_t float8_spread_stride(int64_t k) { return (k + 15) / 16 * 16; }

/// Queues the kernel on `stream`; all of the job's pointers are device memory. Where `spread` is
/// not null, the values go there too, as bfloat16, which holds every one of them: (rows, k), rows
/// float8_spread_stride(k) apart. Throws std::runtime_error where the launch is refused.
template <class Element>
void launch_float8_quantize(const Float8Quantize<Element>& job, BFloat16* spread,
                            CUstream_st* stream);

}  // namespace aegis::kernels::cuda
