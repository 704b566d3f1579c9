// Shared memory of one block with TMA played by the host as the PTX ISA describes it: boxes of a
// mapped matrix, swizzled, with zeros outside of it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/tma.h"

namespace aegis::simt {

struct PlayedShared {
  uint32_t address;  ///< of the first byte; a multiple of 1,024
  std::vector<uint8_t> bytes;

  PlayedShared(uint32_t address, size_t size) : address(address), bytes(size, 0xee) {}

  /// Byte `offset` is where the box goes.
  void load(uint32_t offset, const kernels::cuda::TileMap& map, const uint8_t* from, int64_t column,
            int64_t row) {
    for (uint32_t r = 0; r < map.box[1]; ++r) {
      for (uint32_t c = 0; c < map.box[0]; ++c) {
        const uint64_t x = static_cast<uint64_t>(column) + c, y = static_cast<uint64_t>(row) + r;
        const bool inside = x < map.sizes[0] && y < map.sizes[1];
        bytes[offset + kernels::cuda::tile_swizzled(r * map.box[0] + c)] =
            inside ? from[y * map.strides[0] + x] : 0;
      }
    }
  }

  /// What a tensor core reads with the 128-byte swizzle: byte c of row r of the K-major operand
  /// that begins at `start`, whose groups of eight rows lie `group` bytes apart. The swizzle is a
  /// function of the address's own bits.
  uint8_t operand(uint32_t start, uint32_t group, uint32_t r, uint32_t c) const {
    const uint32_t plain = start + r / 8 * group + r % 8 * 128 + c;
    return bytes[(plain ^ ((plain >> 7 & 7) << 4)) - address];
  }
};

}  // namespace aegis::simt
