#include "kernels/cuda/float8_linear.h"

#include <algorithm>

#include "kernels/cuda/float8_linear.cuh"
#include "kernels/cuda/launch.h"

namespace aegis::kernels::cuda {
namespace {

constexpr int64_t kMostBlocks = 1 << 20;

unsigned blocks(int64_t items, int64_t each) {
  return static_cast<unsigned>(std::min((items + each - 1) / each, kMostBlocks));
}

}  // namespace

void launch_float8_linear(const Float8Linear& job, CUstream_st* stream) {
  if (job.rows == 0 || job.n == 0) return;
  const auto kernel = job.rows == 1   ? float8_linear<1>
                      : job.rows == 2 ? float8_linear<2>
                      : job.rows <= 4 ? float8_linear<4>
                      : job.rows <= 8 ? float8_linear<8>
                                      : float8_linear<16>;
  launch("float8_linear", kernel, blocks(job.n, kFloat8LinearThreads / 32), kFloat8LinearThreads, 0,
         stream, job);
}

void launch_float8_rescale(const Float8Linear& job, const float* products, CUstream_st* stream) {
  if (job.rows == 0 || job.n == 0) return;
  constexpr int kThreads = 256;
  launch("float8_rescale", float8_rescale, blocks(job.rows * job.n, kThreads), kThreads, 0, stream,
         job, products);
}

}  // namespace aegis::kernels::cuda
