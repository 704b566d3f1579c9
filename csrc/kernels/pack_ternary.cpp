#include "kernels/pack_ternary.h"

#include <algorithm>
#include <limits>

namespace aegis::kernels {

Magnitudes merged(const Magnitudes& first, const Magnitudes& second) {
  return {first.sum + second.sum, std::min(first.smallest, second.smallest),
          std::max(first.largest, second.largest), first.finite && second.finite};
}

float ternary_scale(const Magnitudes& magnitudes, int64_t count) {
  if (magnitudes.largest == 0) return 1;
  if (magnitudes.smallest == magnitudes.largest) return magnitudes.largest;
  const auto mean = static_cast<float>(magnitudes.sum / static_cast<double>(count));
  return std::max(mean, std::numeric_limits<float>::denorm_min());
}

}  // namespace aegis::kernels
