// How a matrix is spread over a GPU: columns along x, rows along y.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"

namespace aegis::kernels::cuda {

/// Blocks of 256 threads: as many along x as a row has columns, rounded up to a power of two, and
/// the rest along y, so that short rows share a block. Kernels stride over what the grid does not
/// cover.
struct RowGrid {
  static constexpr unsigned kThreads = 256;

  RowGrid(int64_t rows, int64_t columns) {
    unsigned wide = 1;
    while (wide < kThreads && wide < columns) wide *= 2;
    block = dim3(wide, kThreads / wide);
    const auto blocks = [](int64_t items, unsigned each, int64_t most) {
      return static_cast<unsigned>(std::min((items + each - 1) / each, most));
    };
    grid = dim3(blocks(columns, block.x, 1024), blocks(rows, block.y, kMaxGridY));
  }

  dim3 grid;
  dim3 block;
};

}  // namespace aegis::kernels::cuda
