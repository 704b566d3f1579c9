#include "kernels/cuda/kv_move_.h"

#include <algorithm>

#include "kernels/cuda/kv_move_.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_grid.h"
#include "kernels/cuda/widest_word.h"

namespace aegis::kernels::cuda {
namespace {

/// Every address, stride and size of a side.
uint64_t joined(const KvMoveSide& side) {
  const int64_t strides = side.row_stride | side.head_stride | side.slot_stride | side.bytes;
  return reinterpret_cast<uint64_t>(side.cache) | static_cast<uint64_t>(strides);
}

}  // namespace

void launch_kv_move(const KvMove& job, CUstream_st* stream) {
  const bool nothing = job.batch == 0 || job.heads == 0 || job.tokens == 0 || job.slots == 0;
  if (nothing || job.keys.bytes + job.values.bytes == 0) return;
  const int64_t vectors = job.batch * job.heads;
  const int64_t bytes = std::max(job.keys.bytes, job.values.bytes);
  const uint64_t all = joined(job.keys) | joined(job.values);
  with_widest_word(all, [&]<class Word>(std::type_identity<Word>) {
    RowGrid shape(vectors, bytes / static_cast<int64_t>(sizeof(Word)));
    shape.grid.z = 2;
    launch("kv_move_", kv_move<Word>, shape.grid, shape.block, 0, stream, job);
  });
}

}  // namespace aegis::kernels::cuda
