#include "kernels/cuda/float8_quantize.h"

#include <algorithm>

#include "kernels/cuda/float8_quantize.cuh"
#include "kernels/cuda/launch.h"

namespace aegis::kernels::cuda {

template <class Element>
void launch_float8_quantize(const Float8Quantize<Element>& job, BFloat16* spread,
                            CUstream_st* stream) {
  const int64_t all = job.rows * job.groups;
  if (all == 0) return;
  constexpr int kWarps = kFloat8Threads / 32;
  constexpr int64_t kMostBlocks = 1 << 20;
  const bool long_groups = std::min(job.group, job.k) > 512;
  const int64_t teams = long_groups ? 1 : kWarps;
  const auto kernel = long_groups ? float8_quantize<Element, kWarps> : float8_quantize<Element, 1>;
  const auto grid = static_cast<unsigned>(std::min((all + teams - 1) / teams, kMostBlocks));
  launch("float8_quantize", kernel, grid, kFloat8Threads, 0, stream, job, spread);
}

#define AEGIS_INSTANTIATE(Element) \
  template void launch_float8_quantize(const Float8Quantize<Element>&, BFloat16*, CUstream_st*);
AEGIS_FLOAT8_QUANTIZE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::cuda
