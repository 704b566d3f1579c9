#include "kernels/cuda/to_bfloat16_rne.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/to_bfloat16_rne.cuh"

namespace aegis::kernels::cuda {
namespace {

constexpr unsigned kBfloat16Threads = 256;
/// As many threads as any GPU has at work; they stride over the rest.
constexpr int64_t kBfloat16Blocks = 2048;

}  // namespace

void launch_to_bfloat16_rne(const ToBfloat16Rne& job, CUstream_st* stream) {
  if (job.count == 0) return;
  const int64_t blocks = (job.count + kBfloat16Threads - 1) / kBfloat16Threads;
  const dim3 grid(static_cast<unsigned>(std::min(blocks, kBfloat16Blocks)));
  launch("to_bfloat16_rne", to_bfloat16_rne, grid, dim3(kBfloat16Threads), 0, stream, job);
}

}  // namespace aegis::kernels::cuda
