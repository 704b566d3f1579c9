#include "kernels/pack_ternary.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace aegis::kernels {

template <class Element>
Magnitudes magnitudes_of(const PackTernary<Element>& job, int64_t row) {
  const Element* weight = job.weight + row * job.weight_stride;
  Magnitudes all{0, std::numeric_limits<float>::infinity(), 0, true};
  for (int64_t i = 0; i < job.k; ++i) {
    const float size = std::abs(to_float(weight[i]));
    all.finite = all.finite && std::isfinite(size);
    all.sum += double{size};
    all.largest = std::max(all.largest, size);
    if (size > 0) all.smallest = std::min(all.smallest, size);
  }
  return all;
}

template <class Element>
void pack_row(const PackTernary<Element>& job, int64_t row, float scale, uint32_t* words) {
  const Element* weight = job.weight + row * job.weight_stride;
  const double half = double{scale} / 2;
  for (int64_t word = 0; word < trit_words(job.k); ++word) {
    const int64_t count = std::min(job.k - word * kTritsInWord, kTritsInWord);
    uint32_t codes = 0;
    for (int64_t i = 0; i < count; ++i) {  // without branches, which no one could predict
      const double value = to_float(weight[word * kTritsInWord + i]);
      codes |= (uint32_t{value > half} | uint32_t{value < -half} << 1) << 2 * i;
    }
    words[word] = codes;
  }
}

#define AEGIS_INSTANTIATE(Element)                                         \
  template Magnitudes magnitudes_of(const PackTernary<Element>&, int64_t); \
  template void pack_row(const PackTernary<Element>&, int64_t, float, uint32_t*);
AEGIS_PACK_TERNARY_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels
