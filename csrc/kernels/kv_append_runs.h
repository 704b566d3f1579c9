// The loop over runs of slots shared by the vector versions of kv_append_.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_append_.h"

namespace aegis::kernels {

/// kv_append_ by way of `Copy`, which has a static row(from, to, bytes). `Copy` is a type in an
/// anonymous namespace of its ISA's file; that gives every instantiation internal linkage, so the
/// linker cannot swap one ISA's copy for another's.
template <class Copy>
struct KvRuns {
  /// `tokens` vectors into slots that follow each other.
  static void run(const std::byte* from, std::byte* to, const KvSide& side, int64_t tokens) {
    if (side.slot_stride == side.bytes && side.fresh_token_stride == side.bytes) {
      Copy::row(from, to, tokens * side.bytes);
      return;
    }
    for (int64_t t = 0; t < tokens; ++t) {
      Copy::row(from + t * side.fresh_token_stride, to + t * side.slot_stride, side.bytes);
    }
  }

  static void pair(const KvAppend& job, const KvSide& side, int64_t b, int64_t row, int64_t head,
                   int64_t slot, const int64_t* page) {
    const std::byte* from = side.fresh + b * side.fresh_batch_stride +
                            head * side.fresh_head_stride + job.skipped() * side.fresh_token_stride;
    std::byte* to = side.cache + head * side.head_stride;
    int64_t count = 0;
    for (int64_t left = job.tokens - job.skipped(); left > 0; left -= count, slot = 0) {
      const int64_t room = job.slots - slot;
      count = left < room ? left : room;
      if (page) row = *page++;
      run(from, to + row * side.row_stride + slot * side.slot_stride, side, count);
      from += count * side.fresh_token_stride;
    }
  }

  static void append(const KvAppend& job, int64_t begin, int64_t end) {
    int64_t b = begin / job.heads;
    int64_t head = begin % job.heads;
    for (int64_t done = begin; done < end; ++b, head = 0) {
      const int64_t row = job.rows ? job.rows[b] : b;
      const int64_t position = job.positions[b] + job.skipped();
      const int64_t slot = position % job.slots;
      const int64_t* page =
          job.blocks ? job.blocks + row * job.block_stride + position / job.slots : nullptr;
      for (; head < job.heads && done < end; ++head, ++done) {
        pair(job, job.keys, b, row, head, slot, page);
        pair(job, job.values, b, row, head, slot, page);
      }
    }
  }
};

}  // namespace aegis::kernels
