#include "kernels/cuda/extract_batch.h"

#include <algorithm>

#include "kernels/cuda/extract_batch.cuh"
#include "kernels/cuda/launch.h"

namespace aegis::kernels::cuda {

template <class Token, class Input>
void launch_extract_batch(const ExtractBatch<Token, Input>& job, int64_t tokens,
                          CUstream_st* stream) {
  if (job.batch == 0) return;
  const int64_t columns = (job.block_size + kExtractThreads - 1) / kExtractThreads;
  const dim3 grid(static_cast<unsigned>(std::min(columns, int64_t{1024})),
                  static_cast<unsigned>(std::min(job.batch, kMaxGridY)));
  launch("extract_batch", extract_batch<Token, Input>, grid, kExtractThreads, 0, stream, job,
         tokens);
}

#define AEGIS_INSTANTIATE(Token, Input) \
  template void launch_extract_batch(const ExtractBatch<Token, Input>&, int64_t, CUstream_st*);
AEGIS_EXTRACT_BATCH_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::cuda
