// Tensor maps: what the driver is told of a matrix whose tiles TMA copies, and where it puts their
// bytes. Plain arithmetic, which the host can test.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace aegis::kernels::cuda {

/// Bytes of a row of a tile: the width of the 128-byte swizzle, and of E4M3 one group where scales
/// come in blocks.
constexpr int kTileK = 128;

AEGIS_HOST_DEVICE constexpr int64_t tile_count(int64_t items, int64_t tile) {
  return (items + tile - 1) / tile;
}

/// Where TMA's 128-byte swizzle puts byte `offset` of a tile with rows of 128 bytes that begins at
/// a multiple of 1,024: the eight 16-byte chunks of a row are exclusive-ored with the row's number.
AEGIS_HOST_DEVICE constexpr uint32_t tile_swizzled(uint32_t offset) {
  return offset ^ ((offset >> 7 & 7) << 4);
}

/// What cuTensorMapEncodeTiled is told of a row-major matrix of bytes. FP8 travels as UINT8.
struct TileMap {
  uint64_t sizes[2];    ///< columns, rows
  uint64_t strides[1];  ///< bytes from row to row
  uint32_t box[2];      ///< columns and rows of a tile
};

constexpr TileMap tile_map(int64_t rows, int64_t k, int64_t stride, int box_rows) {
  return {{static_cast<uint64_t>(k), static_cast<uint64_t>(rows)},
          {static_cast<uint64_t>(stride)},
          {kTileK, static_cast<uint32_t>(box_rows)}};
}

/// Whether TMA can read such a matrix: 16-byte alignment, strides below 2⁴⁰, and coordinates that
/// are 32-bit integers.
inline bool tile_map_fits(const void* address, int64_t rows, int64_t k, int64_t stride) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0 && stride % 16 == 0 && k > 0 && rows > 0 &&
         stride >= k && k < int64_t{1} << 31 && rows < int64_t{1} << 31 &&
         stride < int64_t{1} << 40;
}

}  // namespace aegis::kernels::cuda
