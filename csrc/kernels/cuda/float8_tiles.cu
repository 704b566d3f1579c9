#include "kernels/cuda/float8_tiles.h"

#include "kernels/cuda/float8_tiles.cuh"
#include "kernels/cuda/float8_tiles_sm100.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tma_map.h"

namespace aegis::kernels::cuda {

bool float8_tiles_built(int capability) {
#ifdef AEGIS_SM90A
  if (capability == 90) return true;
#endif
  return capability >= 100 && capability <= sm100::newest_built();
}

int compute_capability(int device) {
  int major = 0, minor = 0;
  check_launch("float8_linear",
               cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  check_launch("float8_linear",
               cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major * 10 + minor;
}

void launch_float8_tiles(const Float8Linear& job, int capability, CUstream_st* stream) {
  if (capability != 90) return sm100::launch_float8_tiles(job, stream);
  const auto map = [](const void* from, int64_t rows, int64_t k, int64_t stride, int box_rows) {
    return encode_tile_map("float8_linear", from, tile_map(rows, k, stride, box_rows));
  };
  const CUtensorMap x = map(job.x, job.rows, job.k, job.k, kTileM);
  const CUtensorMap weight = map(job.weight, job.n, job.k, job.weight_stride, kTileN);
  const int64_t tiles = tile_count(job.rows, kTileM) * tile_count(job.n, kTileN);
  launch("float8_linear", float8_tiles, static_cast<unsigned>(tiles), kTileThreads,
         kTileSharedBytes, stream, job, x, weight);
}

}  // namespace aegis::kernels::cuda
