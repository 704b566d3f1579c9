// kv_append_ on the GPU: one thread a word; keys in plane 0 of the grid, values in plane 1.
#pragma once

#include "kernels/cuda/simt.cuh"
#include "kernels/kv_append_.h"

namespace aegis::kernels::cuda {

/// Copies in words as wide as every address and size allow: `Word` is uint8_t, uint16_t, uint32_t,
/// uint2 or uint4. Vectors, counted (batch row, head, token), along y; words of a vector along x.
template <class Word>
__global__ void kv_append(KvAppend job) {
  const KvSide& side = blockIdx.z == 0 ? job.keys : job.values;
  const int64_t words = side.bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t skipped = job.skipped();
  const int64_t tokens = job.tokens - skipped;
  const int64_t vectors = job.batch * job.heads * tokens;
  const int64_t vector_step = int64_t{blockDim.y} * gridDim.y;
  const int64_t word_step = int64_t{blockDim.x} * gridDim.x;
  for (int64_t vector = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; vector < vectors;
       vector += vector_step) {
    const int64_t token = skipped + vector % tokens;
    const int64_t head = vector / tokens % job.heads;
    const int64_t b = vector / tokens / job.heads;
    const int64_t row = job.rows ? job.rows[b] : b;
    const int64_t position = job.positions[b];
    if (position < 0 || position > INT64_MAX - token || row < 0 || row >= job.cache_rows) continue;
    const int64_t slot = (position + token) % job.slots;
    int64_t page = row;
    if (job.blocks) {
      const int64_t block = (position + token) / job.slots;
      if (block >= job.row_blocks) continue;
      page = job.blocks[row * job.block_stride + block];
      if (page < 0 || page >= job.pages) continue;
    }
    const auto* from = reinterpret_cast<const Word*>(side.fresh + b * side.fresh_batch_stride +
                                                     head * side.fresh_head_stride +
                                                     token * side.fresh_token_stride);
    auto* to = reinterpret_cast<Word*>(side.cache + page * side.row_stride +
                                       head * side.head_stride + slot * side.slot_stride);
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += word_step) {
      to[i] = from[i];
    }
  }
}

}  // namespace aegis::kernels::cuda
