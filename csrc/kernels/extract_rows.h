// The row loop shared by the vector versions of extract_batch.
#pragma once

#include "kernels/extract_batch.h"

namespace aegis::kernels {

/// Windows start at random places of an arena far larger than the caches, so a row costs the
/// latency of memory, not arithmetic: the lines of a later row are prefetched while this one is
/// widened. Into the second-level cache: in the first the outputs, eight bytes a token, would push
/// them out again before their turn (measured: a fifth slower).
///
/// `Widen` lives in an anonymous namespace of its ISA's file and has `static void row(const Token*,
/// Out*, int64_t)`; that gives every instantiation internal linkage, so the linker cannot swap one
/// ISA's copy for another's.
template <class Widen, class Token, class Input>
inline void extract_rows(const ExtractBatch<Token, Input>& job) {
  constexpr int64_t kLine = 64;  // bytes
  constexpr int kSecondLevel = 2;
  constexpr int64_t kRowsAhead = 6;  // of 2, 4, 6, 8 and 16, for rows of 64 to 4096 tokens
  for (int64_t row = 0; row < job.batch; ++row) {
    if (row + kRowsAhead < job.batch) {
      const char* later = reinterpret_cast<const char*>(job.arena + job.offsets[row + kRowsAhead]);
      const char* end = later + (job.block_size + 1) * static_cast<int64_t>(sizeof(Token));
      for (later -= reinterpret_cast<uintptr_t>(later) % kLine; later < end; later += kLine) {
        __builtin_prefetch(later, 0, kSecondLevel);
      }
    }
    const Token* window = job.arena + job.offsets[row];
    Widen::row(window, job.inputs + row * job.block_size, job.block_size);
    Widen::row(window + 1, job.targets + row * job.block_size, job.block_size);
  }
}

}  // namespace aegis::kernels
