#include "ops/kv_append_.h"

#include <algorithm>

namespace aegis::ops {
namespace {

/// Bytes to copy that are worth waking a thread for.
constexpr int64_t kThreadBytes = 256 << 10;

void append(const Tensor& keys, const Tensor& values, const Tensor& new_keys,
            const Tensor& new_values, const Tensor& positions, const std::optional<Tensor>& rows,
            const std::optional<Tensor>& blocks) {
  const kernels::KvAppend job =
      check_kv_append(keys, values, new_keys, new_values, positions, rows, blocks);
  check_places(job);
  const int64_t pairs = job.batch * job.heads;
  if (pairs == 0 || job.tokens == 0) return;
  const auto kernel = kernels::kv_append_kernel();
  const int64_t pair_bytes = job.tokens * (job.keys.bytes + job.values.bytes);
  const int64_t grain = kThreadBytes / std::max(pair_bytes, int64_t{1}) + 1;
  if (grain >= pairs) return kernel(job, 0, pairs);
  torch::stable::parallel_for(0, pairs, grain,
                              [&](int64_t begin, int64_t end) { kernel(job, begin, end); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("kv_append_", TORCH_BOX(&kv_append<append>));
  m.impl("kv_append_.paged", TORCH_BOX(&kv_append_paged<append>));
}

}  // namespace aegis::ops
