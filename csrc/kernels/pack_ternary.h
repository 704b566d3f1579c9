// pack_ternary: weights to trits. Runs once for each layer of a model, so there is one version.
#pragma once

#include <cstdint>

#include "kernels/element.h"
#include "kernels/trits.h"

namespace aegis::kernels {

/// What scales are made of: the magnitudes of some weights.
struct Magnitudes {
  double sum;      ///< in the order of memory
  float smallest;  ///< that is not zero; infinity where all are
  float largest;
  bool finite;  ///< all of them; where not, the others mean nothing
};

template <class Element>
struct PackTernary {
  const Element* weight;  ///< (n, k): rows of k adjacent elements
  int64_t weight_stride;  ///< elements from one row to the next
  int64_t k;
};

/// The magnitudes of row `row`.
template <class Element>
Magnitudes magnitudes_of(const PackTernary<Element>& job, int64_t row);

/// Of two parts of a matrix, the first before the second.
Magnitudes merged(const Magnitudes& first, const Magnitudes& second);

/// The scale of `count` weights. Where all that are not zero have one magnitude, that: they are
/// ternary already, and nothing is lost. Else the mean magnitude (Ma et al., BitNet b1.58, 2024),
/// or the least number above zero where that rounds to zero. 1 where all are zero.
float ternary_scale(const Magnitudes& magnitudes, int64_t count);

/// Rounds row `row` over `scale`, which is finite and above zero, to the nearest trits, ties to
/// zero, and writes trit_words(k) words.
template <class Element>
void pack_row(const PackTernary<Element>& job, int64_t row, float scale, uint32_t* words);

/// Every type it is built for: X(Element).
#define AEGIS_PACK_TERNARY_TYPES(X) X(float) X(Half) X(BFloat16)

}  // namespace aegis::kernels
