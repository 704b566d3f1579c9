#include "kernels/cuda/gather_records.h"

#include "kernels/cuda/gather_records.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_grid.h"

namespace aegis::kernels::cuda {
namespace {

template <class Word>
void launch_in_words(const GatherRecords& job, int64_t rows, CUstream_st* stream) {
  const RowGrid shape(job.batch, job.row_bytes / static_cast<int64_t>(sizeof(Word)));
  launch("gather_records", gather_records<Word>, shape.grid, shape.block, 0, stream, job, rows);
}

}  // namespace

void launch_gather_records(const GatherRecords& job, int64_t rows, CUstream_st* stream) {
  if (job.batch == 0 || job.row_bytes == 0) return;
  // Every row begins at a multiple of the lowest bit set in any of these.
  const uint64_t all = reinterpret_cast<uint64_t>(job.source) |
                       reinterpret_cast<uint64_t>(job.out) |
                       static_cast<uint64_t>(job.row_stride | job.row_bytes);
  if (all % 16 == 0) return launch_in_words<uint4>(job, rows, stream);
  if (all % 8 == 0) return launch_in_words<uint2>(job, rows, stream);
  if (all % 4 == 0) return launch_in_words<uint32_t>(job, rows, stream);
  if (all % 2 == 0) return launch_in_words<uint16_t>(job, rows, stream);
  launch_in_words<uint8_t>(job, rows, stream);
}

}  // namespace aegis::kernels::cuda
