// The stream that torch is using, found without linking to torch's CUDA library.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace aegis::ops {

/// torch's current stream on a device. Throws std::runtime_error where this torch has no CUDA.
///
/// Python loads extensions with every symbol bound at once and torch loads libtorch_cuda privately,
/// so a library that names a symbol of libtorch_cuda fails to load even beside a CUDA build of
/// torch. The one function needed is looked up at its first use.
CUstream_st* current_stream(int32_t device_index);

}  // namespace aegis::ops
