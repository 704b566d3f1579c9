// extract_batch: cut `batch` windows of `block_size + 1` tokens out of a flat arena and widen them.
#pragma once

#include <cstdint>

#include "core/cpu.h"

namespace aegis::kernels {

/// What a kernel reads and writes. All pointers are in one memory (host or one GPU); nothing is
/// owned. `Token` is uint8_t, uint16_t, uint32_t, int32_t or int64_t; `Input` is int64_t or
/// int32_t.
///
/// Where `Input` is narrower than a token, values saturate: an id that does not fit stays out of
/// every vocabulary instead of becoming another token's id.
template <class Token, class Input>
struct ExtractBatch {
  const Token* arena;      ///< n tokens
  const int64_t* offsets;  ///< batch window starts, already checked: 0 <= offset < n - block_size
  int64_t batch;
  int64_t block_size;
  Input* inputs;     ///< (batch, block_size), row-major: tokens [offset, offset + block_size)
  int64_t* targets;  ///< (batch, block_size), row-major: the same window one token later
};

template <class Token, class Input>
using ExtractBatchKernel = void (*)(const ExtractBatch<Token, Input>&);

/// The fastest kernel at or below `isa`. Never null; costs a table look-up.
template <class Token, class Input>
ExtractBatchKernel<Token, Input> extract_batch_kernel(Isa isa = active_isa());

/// Every pair of types the kernels are built for: X(Token, Input).
#define AEGIS_EXTRACT_BATCH_TYPES(X) \
  X(uint8_t, int64_t)                \
  X(uint16_t, int64_t)               \
  X(uint32_t, int64_t)               \
  X(int32_t, int64_t)                \
  X(int64_t, int64_t)                \
  X(uint8_t, int32_t)                \
  X(uint16_t, int32_t)               \
  X(uint32_t, int32_t)               \
  X(int32_t, int32_t)                \
  X(int64_t, int32_t)

}  // namespace aegis::kernels
