#include "kernels/cuda/float8_tiles_sm100.h"

#include "kernels/cuda/float8_tiles_sm100.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tma_map.h"

namespace aegis::kernels::cuda::sm100 {

int newest_built() {
#ifdef AEGIS_SM100_NEWEST
  return AEGIS_SM100_NEWEST;
#else
  return 0;
#endif
}

void launch_float8_tiles(const Float8Linear& job, CUstream_st* stream) {
  const CUtensorMap x =
      encode_tile_map("float8_linear", job.x, tile_map(job.rows, job.k, job.k, kM));
  const CUtensorMap weight =
      encode_tile_map("float8_linear", job.weight, tile_map(job.n, job.k, job.weight_stride, kN));
  const int64_t tiles = tile_count(job.rows, kM) * tile_count(job.n, kN);
  launch("float8_linear", float8_tiles_sm100, static_cast<unsigned>(tiles), kThreads, kSharedBytes,
         stream, job, x, weight);
}

}  // namespace aegis::kernels::cuda::sm100
