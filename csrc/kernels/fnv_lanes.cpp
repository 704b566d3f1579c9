#include "kernels/fnv_lanes.h"

#include <algorithm>

#include "core/fnv.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                                                 \
  namespace isa {                                                          \
  void fnv_lanes(uint32_t* lanes, const std::byte* bytes, int64_t blocks); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

FnvLanesKernel fnv_lanes_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512) return avx512::fnv_lanes;
  if (isa >= Isa::avx2) return avx2::fnv_lanes;
#endif
  (void)isa;
  return scalar::fnv_lanes;
}

uint32_t fnv_lanes_digest(const std::byte* bytes, int64_t size, Isa isa) {
  uint32_t lanes[kFnvLanes];
  std::fill_n(lanes, kFnvLanes, Fnv<uint32_t>::kBasis);
  const int64_t blocks = size / kFnvLanes;
  fnv_lanes_kernel(isa)(lanes, bytes, blocks);
  for (int64_t i = blocks * kFnvLanes; i < size; ++i) {
    lanes[i % kFnvLanes] = fnv1a(lanes[i % kFnvLanes], {bytes + i, 1});
  }
  uint32_t digest = Fnv<uint32_t>::kBasis;
  for (uint32_t lane : lanes) digest = fnv1a_number(digest, lane, 4);
  return fnv1a_number(digest, static_cast<uint64_t>(size), 8);
}

}  // namespace aegis::kernels
