// kv_move_: keep some of the newest tokens of a KV cache, close behind those before them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cpu.h"
#include "kernels/host_device.h"

namespace aegis::kernels {

/// Keys or values. A vector is what one head keeps of one token, `bytes` adjacent bytes; nothing
/// needs to be aligned. Strides are in bytes.
struct KvMoveSide {
  std::byte* cache;  ///< (rows, heads, slots) vectors
  int64_t row_stride;
  int64_t head_stride;
  int64_t slot_stride;
  int64_t bytes;
};

/// What a kernel reads and writes. Position positions[b] + t of cache row rows[b] gets what
/// position sources[b * tokens + t] holds, for t = 0, 1, ...; position p lies in slot `p mod
/// slots`. Sources of a row ascend, so that none is overwritten before it is read. All pointers are
/// in one memory (host or one GPU); nothing is owned.
struct KvMove {
  KvMoveSide keys;
  KvMoveSide values;
  const int64_t* sources;    ///< batch x tokens
  const int64_t* positions;  ///< `batch` first positions written, at least 0
  const int64_t* rows;       ///< `batch` different rows of the cache, or null: 0, 1, 2, ...
  int64_t cache_rows;
  int64_t batch;
  int64_t heads;
  int64_t tokens;
  int64_t slots;

  /// Whether a token is to be moved: not where the source is the place itself, nor where it lies
  /// before it (-1 says that there is none) or a buffer's length or more behind.
  AEGIS_HOST_DEVICE bool moves(int64_t source, int64_t position) const {
    return source > position && source - position < slots;
  }
};

/// Moves within the (batch row, head) pairs [begin, end), counted row by row: 0 <= begin <= end <=
/// batch * heads. Threads may share a job, each with pairs of its own. Sources, positions and rows
/// have been checked.
using KvMoveKernel = void (*)(const KvMove&, int64_t begin, int64_t end);

/// The kernel for every ISA: a few vectors, copied by memcpy, which has its own versions.
KvMoveKernel kv_move_kernel(Isa isa = active_isa());

}  // namespace aegis::kernels
