// One value of gather_records_scaled: shared by the scalar and the CUDA kernels.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define AEGIS_HOST_DEVICE __host__ __device__
#else
#define AEGIS_HOST_DEVICE
#endif

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
    uint32_t bits;
    memcpy(&bits, &scaled, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

}  // namespace aegis::kernels
