#include "kernels/cuda/kv_move_.h"

#include <algorithm>

#include "kernels/cuda/kv_move_.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_grid.h"

namespace aegis::kernels::cuda {
namespace {

/// Every vector of the side begins, and is, a multiple of the lowest bit set in this.
uint64_t alignment_of(const KvMoveSide& side) {
  const int64_t strides = side.row_stride | side.head_stride | side.slot_stride | side.bytes;
  return reinterpret_cast<uint64_t>(side.cache) | static_cast<uint64_t>(strides);
}

template <class Word>
void launch_in_words(const KvMove& job, CUstream_st* stream) {
  const int64_t bytes = std::max(job.keys.bytes, job.values.bytes);
  RowGrid shape(job.batch * job.heads, bytes / static_cast<int64_t>(sizeof(Word)));
  shape.grid.z = 2;
  launch("kv_move_", kv_move<Word>, shape.grid, shape.block, 0, stream, job);
}

}  // namespace

void launch_kv_move(const KvMove& job, CUstream_st* stream) {
  const bool nothing = job.batch == 0 || job.heads == 0 || job.tokens == 0 || job.slots == 0;
  if (nothing || job.keys.bytes + job.values.bytes == 0) return;
  const uint64_t all = alignment_of(job.keys) | alignment_of(job.values);
  if (all % 16 == 0) return launch_in_words<uint4>(job, stream);
  if (all % 8 == 0) return launch_in_words<uint2>(job, stream);
  if (all % 4 == 0) return launch_in_words<uint32_t>(job, stream);
  if (all % 2 == 0) return launch_in_words<uint16_t>(job, stream);
  launch_in_words<uint8_t>(job, stream);
}

}  // namespace aegis::kernels::cuda
