#include "kernels/cuda/gather_records_scaled.h"

#include "kernels/cuda/gather_records_scaled.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_grid.h"

namespace aegis::kernels::cuda {

template <class Out>
void launch_gather_records_scaled(const GatherRecordsScaled<Out>& job, int64_t rows,
                                  CUstream_st* stream) {
  const int64_t lines = job.batch * job.channels;
  if (lines == 0 || job.channel_size == 0) return;
  const RowGrid shape(lines, job.channel_size);
  launch("gather_records_scaled", gather_records_scaled<Out>, shape.grid, shape.block, 0, stream,
         job, rows);
}

#define AEGIS_INSTANTIATE(Out)                                                         \
  template void launch_gather_records_scaled(const GatherRecordsScaled<Out>&, int64_t, \
                                             CUstream_st*);
AEGIS_GATHER_RECORDS_SCALED_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::cuda
