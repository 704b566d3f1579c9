#include "kernels/cuda/token_probabilities.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/token_probabilities.cuh"

namespace aegis::kernels::cuda {

template <class Element>
void launch_token_probabilities(const TokenProbabilities<Element>& job, int64_t rows,
                                CUstream_st* stream) {
  if (rows == 0) return;
  constexpr int64_t kMostBlocks = 1 << 20;
  const auto grid = static_cast<unsigned>(std::min(rows, kMostBlocks));
  launch("token_probabilities", token_probabilities<Element>, grid, kSampleThreads, 0, stream, job,
         rows);
}

#define AEGIS_INSTANTIATE(Element)                                                      \
  template void launch_token_probabilities(const TokenProbabilities<Element>&, int64_t, \
                                           CUstream_st*);
AEGIS_SAMPLE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::cuda
