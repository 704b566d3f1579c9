#include "kernels/cuda/float8_tiles.h"

#include <stdexcept>
#include <string>

#include "kernels/cuda/float8_tiles.cuh"
#include "kernels/cuda/launch.h"

namespace aegis::kernels::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, asked for by name: a library that links to the driver would not load on
/// machines without one.
Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kVersion = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             kVersion, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || !found) {
    throw std::runtime_error("float8_linear: this driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<Encode>(found);
}

CUtensorMap encode(const void* address, const TileMap& map) {
  static const Encode encode_tiled = find_encode();
  alignas(128) CUtensorMap encoded;
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result =
      encode_tiled(&encoded, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(address),
                   reinterpret_cast<const cuuint64_t*>(map.sizes),
                   reinterpret_cast<const cuuint64_t*>(map.strides), map.box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("float8_linear: cuTensorMapEncodeTiled failed with " +
                             std::to_string(static_cast<int>(result)));
  }
  return encoded;
}

}  // namespace

bool float8_tiles_built() {
#ifdef AEGIS_SM90A
  return true;
#else
  return false;
#endif
}

int compute_capability(int device) {
  int major = 0, minor = 0;
  check_launch("float8_linear",
               cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  check_launch("float8_linear",
               cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major * 10 + minor;
}

void launch_float8_tiles(const Float8Linear& job, CUstream_st* stream) {
  const CUtensorMap x = encode(job.x, tile_map(job.rows, job.k, job.k, kTileM));
  const CUtensorMap weight = encode(job.weight, tile_map(job.n, job.k, job.weight_stride, kTileN));
  const int64_t tiles = tile_count(job.rows, kTileM) * tile_count(job.n, kTileN);
  launch("float8_linear", float8_tiles, static_cast<unsigned>(tiles), kTileThreads,
         kTileSharedBytes, stream, job, x, weight);
}

}  // namespace aegis::kernels::cuda
