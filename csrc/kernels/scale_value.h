// One value of gather_records_scaled: shared by the scalar and the CUDA kernels.
#pragma once

#include <cstdint>

#include "kernels/convert.h"
#include "kernels/host_device.h"

namespace aegis::kernels {

template <class Out>
AEGIS_HOST_DEVICE inline Out scale_value(uint8_t value, float scale, float bias) {
#ifdef __CUDA_ARCH__
  const float scaled = __fadd_rn(__fmul_rn(static_cast<float>(value), scale), bias);
#else
  const float scaled = static_cast<float>(value) * scale + bias;
#endif
  if constexpr (sizeof(Out) == 4) {
    return scaled;
  } else {
    return float_to_bfloat16(scaled);
  }
}

}  // namespace aegis::kernels
