#include "ops/kv_move_.h"

#include <algorithm>

namespace aegis::ops {
namespace {

/// Bytes to copy that are worth waking a thread for.
constexpr int64_t kThreadBytes = 256 << 10;

void kv_move(const Tensor& keys, const Tensor& values, const Tensor& sources,
             const Tensor& positions, const std::optional<Tensor>& rows) {
  const kernels::KvMove job = check_kv_move(keys, values, sources, positions, rows);
  check_moves(job);
  const int64_t pairs = job.batch * job.heads;
  if (pairs == 0 || job.tokens == 0) return;
  const auto kernel = kernels::kv_move_kernel();
  const int64_t pair_bytes = job.tokens * (job.keys.bytes + job.values.bytes);
  const int64_t grain = kThreadBytes / std::max(pair_bytes, int64_t{1}) + 1;
  if (grain >= pairs) return kernel(job, 0, pairs);
  torch::stable::parallel_for(0, pairs, grain,
                              [&](int64_t begin, int64_t end) { kernel(job, begin, end); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) { m.impl("kv_move_", TORCH_BOX(&kv_move)); }

}  // namespace aegis::ops
