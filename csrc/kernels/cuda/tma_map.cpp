#include "kernels/cuda/tma_map.h"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace aegis::kernels::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, asked for by name: a library that links to the driver would not load on
/// machines without one. Null where there is none.
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
  const bool there = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return there ? reinterpret_cast<Encode>(found) : nullptr;
}

}  // namespace

CUtensorMap encode_tile_map(const char* op, const void* address, const TileMap& map) {
  static const Encode encode = find_encode();
  if (encode == nullptr) {
    throw std::runtime_error(std::string(op) + ": this driver has no cuTensorMapEncodeTiled");
  }
  alignas(128) CUtensorMap encoded;
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result =
      encode(&encoded, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(address),
             reinterpret_cast<const cuuint64_t*>(map.sizes),
             reinterpret_cast<const cuuint64_t*>(map.strides), map.box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(op) + ": cuTensorMapEncodeTiled failed with " +
                             std::to_string(static_cast<int>(result)));
  }
  return encoded;
}

}  // namespace aegis::kernels::cuda
