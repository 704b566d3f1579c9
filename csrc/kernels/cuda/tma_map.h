// Tensor maps as TMA reads them: opaque, and encoded by the driver alone.
#pragma once

#include <cuda.h>

#include "kernels/cuda/tma.h"

namespace aegis::kernels::cuda {

/// The map of the matrix at `address`, which tile_map_fits, with the 128-byte swizzle and zeros
/// outside. Throws std::runtime_error, which names `op`, where the driver has no such function or
/// refuses.
CUtensorMap encode_tile_map(const char* op, const void* address, const TileMap& map);

}  // namespace aegis::kernels::cuda
