// kv_move_ on the GPU: one thread a word of every vector of a head; keys in plane 0 of the grid,
// values in plane 1.
#pragma once

#include "kernels/cuda/simt.cuh"
#include "kernels/kv_move_.h"

namespace aegis::kernels::cuda {

/// Copies in words as wide as every address and size allow: `Word` is uint8_t, uint16_t, uint32_t,
/// uint2 or uint4. Pairs of batch row and head along y; words of a vector along x. A thread moves
/// its word of one token after another: what a place held is read, if at all, by the thread that
/// overwrites it, and before.
template <class Word>
__global__ void kv_move(KvMove job) {
  const KvMoveSide& side = blockIdx.z == 0 ? job.keys : job.values;
  const int64_t words = side.bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t pairs = job.batch * job.heads;
  const int64_t pair_step = int64_t{blockDim.y} * gridDim.y;
  const int64_t word_step = int64_t{blockDim.x} * gridDim.x;
  for (int64_t pair = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; pair < pairs;
       pair += pair_step) {
    const int64_t b = pair / job.heads, head = pair % job.heads;
    const int64_t row = job.rows ? job.rows[b] : b;
    const int64_t first = job.positions[b];
    if (first < 0 || first > INT64_MAX - job.tokens || row < 0 || row >= job.cache_rows) continue;
    std::byte* slots = side.cache + row * side.row_stride + head * side.head_stride;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += word_step) {
      for (int64_t t = 0; t < job.tokens; ++t) {
        const int64_t source = job.sources[b * job.tokens + t], position = first + t;
        if (!job.moves(source, position)) continue;
        const auto* from =
            reinterpret_cast<const Word*>(slots + source % job.slots * side.slot_stride);
        reinterpret_cast<Word*>(slots + position % job.slots * side.slot_stride)[i] = from[i];
      }
    }
  }
}

}  // namespace aegis::kernels::cuda
