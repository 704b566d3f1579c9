// skinny_linear: a linear layer of few rows, which costs what it takes to read the weights once.
#pragma once

#include <cstdint>

#include "core/cpu.h"
#include "kernels/element.h"

namespace aegis::kernels {

constexpr int64_t kSkinnyRows = 8;

/// What a kernel reads and writes: out = x · weightᵀ + bias. All pointers are in one memory (host
/// or one GPU), aligned to their elements and no further; nothing is owned. `Element` is float,
/// Half or BFloat16.
///
/// Sums are float32, and every version adds in an order of its own, so results are not the same
/// bits. What all of them keep, where e = Σ|x·w| + |bias| over one output element:
///   |out − exact| ≤ k · 2⁻²³ · e, then rounded to `Element` (to nearest, ties to even).
/// NaN and infinities go through as in any sum of products. Exceptions: a sum whose parts exceed
/// float32 may overflow in one order and not in another; and with avx512_bf16, whose instruction
/// does so, bfloat16 numbers below 2⁻¹²⁶ count as zero and so do sums below it.
template <class Element>
struct SkinnyLinear {
  const Element* x;       ///< (rows, k), row-major
  const Element* weight;  ///< (n, k): rows of k adjacent elements
  int64_t weight_stride;  ///< elements from one row of `weight` to the next
  const Element* bias;    ///< n, or null
  Element* out;           ///< (rows, n), row-major; shares no memory with the others
  int64_t rows;           ///< 0 to kSkinnyRows
  int64_t k;
  int64_t n;
};

/// Fills columns [begin, end) of `out`, with 0 <= begin <= end <= n. Threads may share a job, each
/// with columns of its own.
template <class Element>
using SkinnyLinearKernel = void (*)(const SkinnyLinear<Element>&, int64_t begin, int64_t end);

/// The fastest kernel at or below `isa`. Never null; costs a table look-up.
template <class Element>
SkinnyLinearKernel<Element> skinny_linear_kernel(Isa isa = active_isa());

/// Every type the kernels are built for: X(Element).
#define AEGIS_SKINNY_LINEAR_TYPES(X) X(float) X(Half) X(BFloat16)

}  // namespace aegis::kernels
