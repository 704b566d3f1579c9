// The row loop shared by the vector versions of extract_batch.
#pragma once

#include "kernels/extract_batch.h"

namespace aegis::kernels {

/// Windows start at random places of an arena far larger than the caches, so a row costs the
/// latency of memory, not arithmetic: the lines of a later row are prefetched while this one is
/// widened.
///
/// `Widen` lives in an anonymous namespace of its ISA's file and has `static void row(const Token*,
/// Out*, int64_t)`; that gives every instantiation internal linkage, so the linker cannot swap one
/// ISA's copy for another's.
template <class Widen, class Token, class Input>
inline void extract_rows(const ExtractBatch<Token, Input>& job) {
  constexpr int64_t kLine = 64;      // bytes
  constexpr int64_t kRowsAhead = 4;  // best of 1, 2, 4, 8, 16 at 64 x 256 tokens in a 1 GB arena
  for (int64_t row = 0; row < job.batch; ++row) {
    if (row + kRowsAhead < job.batch) {
      const Token* later = job.arena + job.offsets[row + kRowsAhead];
      const char* end = reinterpret_cast<const char*>(later + job.block_size + 1);
      for (const char* line = reinterpret_cast<const char*>(later); line < end; line += kLine) {
        __builtin_prefetch(line);
      }
    }
    const Token* window = job.arena + job.offsets[row];
    Widen::row(window, job.inputs + row * job.block_size, job.block_size);
    Widen::row(window + 1, job.targets + row * job.block_size, job.block_size);
  }
}

}  // namespace aegis::kernels
