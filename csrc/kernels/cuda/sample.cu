#include "kernels/cuda/sample.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sample.cuh"

namespace aegis::kernels::cuda {

template <class Element>
void launch_sample(const Sample<Element>& job, int64_t rows, CUstream_st* stream) {
  if (rows == 0) return;
  constexpr int64_t kMostBlocks = 1 << 20;
  const auto grid = static_cast<unsigned>(std::min(rows, kMostBlocks));
  launch("sample", sample<Element>, grid, kSampleThreads, 0, stream, job, rows);
}

#define AEGIS_INSTANTIATE(Element) \
  template void launch_sample(const Sample<Element>&, int64_t, CUstream_st*);
AEGIS_SAMPLE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::cuda
