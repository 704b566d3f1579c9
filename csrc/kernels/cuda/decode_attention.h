#pragma once

#include <algorithm>

#include "kernels/decode_attention.h"
#include "kernels/host_device.h"

struct CUstream_st;

namespace aegis::kernels::cuda {

/// What the kernels read and write beside the job; all pointers are device memory.
template <class Element>
struct DecodeAttentionOnDevice {
  DecodeAttention<Element> job;
  const int64_t* spans;  ///< a start and an end for each batch row
  int64_t span_stride;
  const int64_t* rows;  ///< of the cache, or of blocks; null: 0, 1, 2, ...
  int64_t batch;
  int64_t window;      ///< 0: none
  int64_t cache_rows;  ///< of keys, or of blocks
  int64_t row_blocks;
  int64_t pages;  ///< of keys
  float* parts;   ///< part_floats() of them

  AEGIS_HOST_DEVICE int64_t heads() const { return job.group * job.key_heads; }
  /// Pieces that a range may have.
  int64_t pieces() const {
    const int64_t held = job.blocks ? row_blocks * job.slots : job.slots;
    const int64_t most = window > 0 ? std::min(held, window) : held;
    return std::max((most + kPiecePositions - 1) / kPiecePositions, int64_t{1});
  }
  /// A part is the result of a piece for one query head: the largest score, Σ exp(score − largest),
  /// and Σ exp(score − largest) · value.
  int64_t part_floats() const { return batch * heads() * pieces() * (2 + job.head_size); }
};

constexpr int64_t kMaxHeadSize = 4096;

/// Queues the kernels on `stream`. Spans, rows and blocks are read there, when they run: a row
/// whose span or pages are not there becomes NaN. Throws std::runtime_error where the launch is
/// refused.
template <class Element>
void launch_decode_attention(const DecodeAttentionOnDevice<Element>& on_device,
                             CUstream_st* stream);

}  // namespace aegis::kernels::cuda
