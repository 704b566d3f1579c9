// ternary_linear: a linear layer whose weights are -1, 0 and +1 times a scale, in two bits each.
#pragma once

#include <cstdint>

#include "core/cpu.h"
#include "kernels/element.h"
#include "kernels/trits.h"

namespace aegis::kernels {

// With int8 activations a layer is sums of small whole numbers, the same in every order: all
// versions give the same bits. Each row of x is brought to -127 ... 127 by its largest magnitude
// (Wang et al., BitNet, 2023); rounding is to nearest even.
//
// The kernels read the public format as it is. Byte j of 64 bytes of a row of weights holds trits
// 4j ... 4j + 3, and taking bits 2s and 2s + 1 of every byte gives trits s, 4 + s, 8 + s ... So it
// is the activations that are put into another order: within every 256, those of one s together.

constexpr int64_t kTernaryBlock = 256;
/// Sums of 2 · 64 · 127 · k / 64 must fit 32 bits.
constexpr int64_t kTernaryMaxK = int64_t{1} << 22;

/// Elements of a prepared row.
constexpr int64_t ternary_padded(int64_t k) {
  return (k + kTernaryBlock - 1) / kTernaryBlock * kTernaryBlock;
}

/// Where activation `i` of a row stands.
constexpr int64_t ternary_place(int64_t i) {
  return i / kTernaryBlock * kTernaryBlock + i % 4 * 64 + i % kTernaryBlock / 4;
}

/// What a kernel reads and writes: out = x · (trits · scale)ᵀ + bias. All pointers are in one
/// memory, aligned to their elements and no further; nothing is owned. `Element` is float, Half or
/// BFloat16.
///
/// With int8 activations, in float32 and with no operation fused:
///   out = (Σ value · trit) · (row's scale · column's scale) + bias, rounded to `Element`
/// A row of x with NaN or an infinity gives NaN in all of its row of out.
///
/// Exact: float32 sums of x over the trits that are not zero, in an order of the version's own:
///   |out − exact| ≤ (k + 2) · 2⁻²³ · (Σ|x · trit| · scale + |bias|), then rounded to `Element`.
/// An element that meets a trit of zero takes no part, be it NaN or infinite.
template <class Element>
struct TernaryLinear {
  const Element* x;        ///< (rows, k), row-major
  const uint32_t* packed;  ///< (n, trit_words(k)), row-major; zeros past k
  const float* scale;      ///< n, or one for all columns
  int64_t scale_stride;    ///< 1, or 0 where there is one
  const Element* bias;     ///< n, or null
  Element* out;            ///< (rows, n), row-major
  int64_t rows;
  int64_t k;  ///< at most kTernaryMaxK
  int64_t n;
  // What prepare() makes of x. With int8 activations:
  int8_t* values;  ///< (rows, ternary_padded(k)), in the order of ternary_place(), zero past k
  float* scales;   ///< rows
  int32_t* sums;   ///< rows: of the values
  // Exact:
  float* floats;  ///< (rows, ternary_padded(k)), in the order of x, zero past k
};

template <class Element>
struct TernaryKernels {
  /// Prepares rows [begin, end) of x. Threads may share a job, each with rows of its own.
  void (*prepare)(const TernaryLinear<Element>&, int64_t begin, int64_t end);
  /// Fills columns [begin, end) of `out`, once all rows are prepared. Threads may share a job, each
  /// with columns of its own. False where a code of 11 was met, or anything but zeros past k: what
  /// that column holds then means nothing.
  bool (*columns)(const TernaryLinear<Element>&, int64_t begin, int64_t end);
};

/// The fastest kernels at or below `isa`.
template <class Element>
TernaryKernels<Element> ternary_kernels(bool exact, Isa isa = active_isa());

/// Whether all of `count` numbers are finite.
bool all_finite(const float* values, int64_t count);

/// Every type the kernels are built for: X(Element).
#define AEGIS_TERNARY_LINEAR_TYPES(X) X(float) X(Half) X(BFloat16)

}  // namespace aegis::kernels
