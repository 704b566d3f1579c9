#include "kernels/kv_move_.h"

#include <cstring>

namespace aegis::kernels::scalar {
namespace {

void move(const KvMove& job, const KvMoveSide& side, int64_t b, int64_t head) {
  const int64_t row = job.rows ? job.rows[b] : b;
  std::byte* slots = side.cache + row * side.row_stride + head * side.head_stride;
  for (int64_t t = 0; t < job.tokens; ++t) {
    const int64_t source = job.sources[b * job.tokens + t], position = job.positions[b] + t;
    if (!job.moves(source, position)) continue;
    std::memcpy(slots + position % job.slots * side.slot_stride,
                slots + source % job.slots * side.slot_stride, static_cast<size_t>(side.bytes));
  }
}

}  // namespace

void kv_move(const KvMove& job, int64_t begin, int64_t end) {
  for (int64_t pair = begin; pair < end; ++pair) {
    move(job, job.keys, pair / job.heads, pair % job.heads);
    move(job, job.values, pair / job.heads, pair % job.heads);
  }
}

}  // namespace aegis::kernels::scalar
