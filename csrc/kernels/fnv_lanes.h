// fnv_lanes: a 32-bit checksum of many bytes at the speed of memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cpu.h"

namespace aegis::kernels {

constexpr int64_t kFnvLanes = 64;

/// Carries `lanes` (kFnvLanes words) over `blocks` blocks of kFnvLanes bytes: byte i of a block
/// goes to lane i, which is an FNV-1a of its own. Nothing needs to be aligned.
using FnvLanesKernel = void (*)(uint32_t* lanes, const std::byte* bytes, int64_t blocks);

/// The fastest kernel at or below `isa`. Never null; costs a table look-up.
FnvLanesKernel fnv_lanes_kernel(Isa isa = active_isa());

/// The digest of `size` bytes. Lane i starts from FNV-1a's basis and takes bytes i, i + 64, i + 128
/// ...; a last part of a block goes to the lanes from 0 on. The digest is the FNV-1a of the lanes,
/// each as four bytes, and of `size` as eight, lowest byte first. Any byte changes it, and so does
/// the order of any two bytes, as far as 32 bits can tell; it is not FNV-1a of the bytes
/// themselves.
uint32_t fnv_lanes_digest(const std::byte* bytes, int64_t size, Isa isa = active_isa());

}  // namespace aegis::kernels
