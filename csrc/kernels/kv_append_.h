// kv_append_: write the keys and values of new tokens into the slots of a KV cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cpu.h"
#include "kernels/host_device.h"

namespace aegis::kernels {

/// Keys or values: where they come from and where they go. A vector is what one head keeps of one
/// token, `bytes` adjacent bytes; nothing needs to be aligned. Strides are in bytes.
struct KvSide {
  std::byte* cache;  ///< (rows, heads, slots) vectors
  int64_t row_stride;
  int64_t head_stride;
  int64_t slot_stride;
  const std::byte* fresh;  ///< (batch, heads, tokens) vectors; shares no memory with any cache
  int64_t fresh_batch_stride;
  int64_t fresh_head_stride;
  int64_t fresh_token_stride;
  int64_t bytes;
};

/// What a kernel reads and writes. Token t of batch row b has position p = positions[b] + t and
/// lies in slot `p mod slots` of cache row rows[b]; where there are blocks, of page
/// blocks[rows[b]][p div slots], and a page is what is a row elsewhere. All pointers are in one
/// memory (host or one GPU); nothing is owned.
struct KvAppend {
  KvSide keys;
  KvSide values;
  const int64_t* positions;  ///< `batch` positions of the first new token, at least 0
  const int64_t* rows;       ///< `batch` different rows of the cache, or null: 0, 1, 2, ...
  int64_t cache_rows;        ///< of the cache, or of blocks
  int64_t batch;
  int64_t heads;
  int64_t tokens;
  int64_t slots;
  const int64_t* blocks = nullptr;  ///< (cache_rows, row_blocks) pages, or null
  int64_t block_stride = 0;         ///< from a row of blocks to the next
  int64_t row_blocks = 0;
  int64_t pages = 0;

  /// Tokens that later ones of the same call would overwrite: they are not written at all.
  AEGIS_HOST_DEVICE int64_t skipped() const {
    return !blocks && tokens > slots ? tokens - slots : 0;
  }
};

/// Writes the (batch row, head) pairs [begin, end), counted row by row: 0 <= begin <= end <=
/// batch * heads. Threads may share a job, each with pairs of its own. Positions and rows have been
/// checked.
using KvAppendKernel = void (*)(const KvAppend&, int64_t begin, int64_t end);

/// The fastest kernel at or below `isa`. Never null; costs a table look-up.
KvAppendKernel kv_append_kernel(Isa isa = active_isa());

}  // namespace aegis::kernels
