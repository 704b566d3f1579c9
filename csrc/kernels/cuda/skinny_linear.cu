#include "kernels/cuda/skinny_linear.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/skinny_linear.cuh"

namespace aegis::kernels::cuda {

template <class Element>
void launch_skinny_linear(const SkinnyLinear<Element>& job, CUstream_st* stream) {
  if (job.rows == 0 || job.n == 0) return;
  constexpr int64_t kWarps = kSkinnyThreads / 32;
  constexpr int64_t kMostBlocks = 1 << 20;
  const auto grid = static_cast<unsigned>(std::min((job.n + kWarps - 1) / kWarps, kMostBlocks));
  const auto kernel = job.rows == 1   ? skinny_linear<Element, 1>
                      : job.rows == 2 ? skinny_linear<Element, 2>
                      : job.rows <= 4 ? skinny_linear<Element, 4>
                                      : skinny_linear<Element, 8>;
  launch("skinny_linear", kernel, grid, kSkinnyThreads, 0, stream, job);
}

#define AEGIS_INSTANTIATE(Element) \
  template void launch_skinny_linear(const SkinnyLinear<Element>&, CUstream_st*);
AEGIS_SKINNY_LINEAR_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::cuda
