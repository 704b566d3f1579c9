// One token to another integer type without wrapping: shared by the scalar and the CUDA kernels.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace aegis::kernels {

/// `token` as `To`, which is int64_t or int32_t, clamped to the ends of int32_t where it does not
/// fit.
template <class To, class From>
AEGIS_HOST_DEVICE inline To saturate(From token) {
  if constexpr (sizeof(To) == 4 &&
                (sizeof(From) == 8 || (sizeof(From) == 4 && From(-1) > From(0)))) {
    const int64_t wide = static_cast<int64_t>(token);
    return static_cast<To>(wide > INT32_MAX ? INT32_MAX : wide < INT32_MIN ? INT32_MIN : wide);
  } else {
    return static_cast<To>(token);
  }
}

}  // namespace aegis::kernels
