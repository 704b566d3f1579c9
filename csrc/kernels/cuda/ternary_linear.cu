#include "kernels/cuda/ternary_linear.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ternary_linear.cuh"
#include "kernels/cuda/ternary_tiles.cuh"

namespace aegis::kernels::cuda {
namespace {

constexpr int64_t kMostBlocks = 1 << 20;
/// More rows than two passes over the weights take are multiplied in tiles.
constexpr int64_t kTernaryFewRows = 16;

template <class Element, int Rows>
void launch_products(const TernaryLinear<Element>& job, bool exact, CUstream_st* stream) {
  constexpr int64_t kWarps = kTernaryThreads / 32;
  const auto columns = static_cast<unsigned>(std::min((job.n + kWarps - 1) / kWarps, kMostBlocks));
  const auto groups = static_cast<unsigned>(std::min((job.rows + Rows - 1) / Rows, kMaxGridY));
  const auto kernel = exact ? ternary_linear_exact<Element, Rows> : ternary_linear<Element, Rows>;
  launch("ternary_linear", kernel, dim3(columns, groups), kTernaryThreads, 0, stream, job);
}

template <class Element>
void launch_tiles(const TernaryLinear<Element>& job, CUstream_st* stream) {
  const auto count = [](int64_t items) { return (items + kTernaryTile - 1) / kTernaryTile; };
  const int64_t tiles = std::min(count(job.rows) * count(job.n), kMostBlocks);
  launch("ternary_linear", ternary_tiles<Element>, static_cast<unsigned>(tiles), kTernaryThreads, 0,
         stream, job);
}

}  // namespace

int64_t ternary_value_bytes(int64_t k) { return ternary_cuda_padded(k); }

template <class Element>
void launch_ternary_linear(const TernaryLinear<Element>& job, bool exact, CUstream_st* stream) {
  if (job.rows == 0 || job.n == 0) return;
  if (!exact) {
    launch("ternary_linear", ternary_prepare<Element>, static_cast<unsigned>(job.rows),
           kTernaryThreads, 0, stream, job);
  }
  if (!exact && job.rows > kTernaryFewRows) {
    launch_tiles(job, stream);
  } else if (job.rows == 1) {
    launch_products<Element, 1>(job, exact, stream);
  } else if (job.rows == 2) {
    launch_products<Element, 2>(job, exact, stream);
  } else if (job.rows <= 4) {
    launch_products<Element, 4>(job, exact, stream);
  } else {
    launch_products<Element, 8>(job, exact, stream);
  }
}

#define AEGIS_INSTANTIATE(Element) \
  template void launch_ternary_linear(const TernaryLinear<Element>&, bool, CUstream_st*);
AEGIS_TERNARY_LINEAR_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::cuda
