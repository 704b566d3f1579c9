// The oracle: every other version must give the same lanes.
#include "kernels/fnv_lanes.h"

#include "core/fnv.h"

namespace aegis::kernels::scalar {

void fnv_lanes(uint32_t* lanes, const std::byte* bytes, int64_t blocks) {
  for (int64_t i = 0; i < blocks * kFnvLanes; ++i) {
    uint32_t& lane = lanes[i % kFnvLanes];
    lane = (lane ^ static_cast<uint8_t>(bytes[i])) * Fnv<uint32_t>::kPrime;
  }
}

}  // namespace aegis::kernels::scalar
