// token_probabilities: what sample draws each row's token from, in full.
#pragma once

#include <cstdint>

#include "core/cpu.h"
#include "kernels/sample.h"

namespace aegis::kernels {

/// What a kernel reads and writes. All pointers are in one memory (host or one GPU); nothing is
/// owned, and `out` shares no memory with anything else. `Element` is float, Half or BFloat16.
///
/// A row's result is the probability of each of its tokens as kernels/sample.h defines it, found by
/// the same decisions on the same weights, and as right; its sum is 1 to 1e-6. A row that draws
/// nothing has 1 for the token that sample takes. Every version writes the same bits.
template <class Element>
struct TokenProbabilities {
  const Element* scores;  ///< rows of `count` adjacent elements
  int64_t stride;         ///< elements from one row to the next
  int64_t count;          ///< of scores in a row: 1 to kMostTokens
  const SampleSettings* settings;
  int64_t settings_stride;  ///< 1, or 0 where all rows share the first
  bool keep_ties;
  float* out;  ///< rows of `count` adjacent elements
  int64_t out_stride;
};

/// Writes rows [begin, end). Threads may share a job, each with rows of its own. The first call of
/// a thread, and one with more tokens than all before, allocates what it works in; nothing else
/// does.
template <class Element>
using TokenProbabilitiesKernel = void (*)(const TokenProbabilities<Element>&, int64_t begin,
                                          int64_t end);

/// The fastest kernel at or below `isa`. Never null; costs a table look-up.
template <class Element>
TokenProbabilitiesKernel<Element> token_probabilities_kernel(Isa isa = active_isa());

}  // namespace aegis::kernels
