// sample: one token of each row of logits.
#pragma once

#include <cstdint>

#include "core/cpu.h"
#include "kernels/element.h"

namespace aegis::kernels {

/// A row's settings, as they lie in memory: floats, so that one tensor holds them all.
///
/// A token's probability is that of softmax(logits / temperature), limited in this order to
///   top_k  the k largest logits; off where it is not above 0 or not below the number of tokens
///   top_p  the shortest prefix, in descending order, whose mass reaches p; off from 1 on
///   min_p  tokens of at least min_p times the largest probability; off at 0
/// and made to sum to 1 again. Where temperature or top_p is not above 0, the token of the largest
/// logit is taken. Equal logits are ordered by index, the lowest first, and top_k keeps exactly k
/// of them, or with `keep_ties` all that equal the k-th.
struct SampleSettings {
  float temperature, top_k, top_p, min_p;
};

/// A row's random numbers: (seed, row, position, domain) name one of them, wherever the row stands
/// in whatever batch (kernels/philox.h). A draw adds 1 to the position.
struct SampleState {
  int64_t seed, row, position, domain;
};

/// What a kernel reads and writes. All pointers are in one memory (host or one GPU); nothing is
/// owned, and what is written shares no memory with anything else. `Element` is float, Half or
/// BFloat16.
///
/// Every version returns the same tokens: weights are computed by the same operations and summed in
/// the same order (kernels/sample_row.h). A token's probability is right to 1e-6 of itself, however
/// many tokens there are, and to 1.2e-7 more for each unit that its logit / temperature lies below
/// the largest; below 2⁻¹⁰⁰ of the largest it counts as 0. A token of probability 0 is never drawn.
///
/// A row with a NaN, or with nothing above -infinity, is not valid: its token is that of the
/// largest logit that is a number, or 0. Of a row with +infinity the token is the first of those.
/// One row's values have no effect on any other.
template <class Element>
struct Sample {
  const Element* logits;  ///< rows of `count` adjacent elements
  int64_t stride;         ///< elements from one row to the next
  int64_t count;          ///< of logits in a row: 1 to kMostTokens
  const SampleSettings* settings;
  int64_t settings_stride;  ///< 1, or 0 where all rows share the first
  SampleState* states;      ///< one for each row
  bool keep_ties;
  int64_t* tokens;
  bool* valid;      ///< or null
  float* logprobs;  ///< or null: log of the probability of each drawn token, NaN where not valid
};

constexpr int64_t kMostTokens = (int64_t{1} << 31) - 1;

/// Draws for rows [begin, end). Threads may share a job, each with rows of its own. The first call
/// of a thread, and one with more tokens than all before, allocates what it works in; nothing else
/// does.
template <class Element>
using SampleKernel = void (*)(const Sample<Element>&, int64_t begin, int64_t end);

/// The fastest kernel at or below `isa`. Never null; costs a table look-up.
template <class Element>
SampleKernel<Element> sample_kernel(Isa isa = active_isa());

/// Every type the kernels are built for: X(Element).
#define AEGIS_SAMPLE_TYPES(X) X(float) X(Half) X(BFloat16)

}  // namespace aegis::kernels
