#include "kernels/cuda/gather_records.h"

#include "kernels/cuda/gather_records.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_grid.h"
#include "kernels/cuda/widest_word.h"

namespace aegis::kernels::cuda {

void launch_gather_records(const GatherRecords& job, int64_t rows, CUstream_st* stream) {
  if (job.batch == 0 || job.row_bytes == 0) return;
  const uint64_t all = reinterpret_cast<uint64_t>(job.source) |
                       reinterpret_cast<uint64_t>(job.out) |
                       static_cast<uint64_t>(job.row_stride | job.row_bytes);
  with_widest_word(all, [&]<class Word>(std::type_identity<Word>) {
    const RowGrid shape(job.batch, job.row_bytes / static_cast<int64_t>(sizeof(Word)));
    launch("gather_records", gather_records<Word>, shape.grid, shape.block, 0, stream, job, rows);
  });
}

}  // namespace aegis::kernels::cuda
