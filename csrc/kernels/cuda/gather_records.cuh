// gather_records on the GPU: one thread a word, a block takes several rows where they are short.
#pragma once

#include "kernels/cuda/simt.cuh"
#include "kernels/gather_records.h"

namespace aegis::kernels::cuda {

/// Copies in words as wide as every address and size allow: `Word` is uint8_t, uint16_t, uint32_t,
/// uint2 or uint4. Rows of the batch along y, words of a row along x.
///
/// Indices live on the device and cannot be refused from the host without a wait: a row outside the
/// source's `rows` is not read, and becomes zeroes.
template <class Word>
__global__ void gather_records(GatherRecords job, int64_t rows) {
  const int64_t words = job.row_bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t row_step = int64_t{blockDim.y} * gridDim.y;
  const int64_t word_step = int64_t{blockDim.x} * gridDim.x;
  for (int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < job.batch;
       row += row_step) {
    const int64_t asked = job.indices[row];
    const bool inside = 0 <= asked && asked < rows;
    const int64_t index = inside ? asked : 0;
    const auto* from = reinterpret_cast<const Word*>(job.source + index * job.row_stride);
    auto* to = reinterpret_cast<Word*>(job.out + row * job.row_bytes);
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += word_step) {
      to[i] = inside ? from[i] : Word{};
    }
  }
}

}  // namespace aegis::kernels::cuda
