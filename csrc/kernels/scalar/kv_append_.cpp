// The oracle: every other version must equal this, byte for byte.
#include "kernels/kv_append_.h"

#include <cstring>

namespace aegis::kernels::scalar {
namespace {

void append(const KvAppend& job, const KvSide& side, int64_t b, int64_t head) {
  const int64_t row = job.rows ? job.rows[b] : b;
  for (int64_t t = job.skipped(); t < job.tokens; ++t) {
    const int64_t position = job.positions[b] + t, slot = position % job.slots;
    const int64_t page =
        job.blocks ? job.blocks[row * job.block_stride + position / job.slots] : row;
    std::memcpy(
        side.cache + page * side.row_stride + head * side.head_stride + slot * side.slot_stride,
        side.fresh + b * side.fresh_batch_stride + head * side.fresh_head_stride +
            t * side.fresh_token_stride,
        static_cast<size_t>(side.bytes));
  }
}

}  // namespace

void kv_append(const KvAppend& job, int64_t begin, int64_t end) {
  for (int64_t pair = begin; pair < end; ++pair) {
    append(job, job.keys, pair / job.heads, pair % job.heads);
    append(job, job.values, pair / job.heads, pair % job.heads);
  }
}

}  // namespace aegis::kernels::scalar
