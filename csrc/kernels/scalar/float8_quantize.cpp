// The oracle.
#include "kernels/float8_quantize.h"

#include <algorithm>
#include <cmath>

namespace aegis::kernels::scalar {

template <class Element>
void float8_quantize(const Float8Quantize<Element>& job, int64_t begin, int64_t end) {
  const int64_t groups = job.groups;
  for (int64_t i = begin * groups; i < end * groups; ++i) {
    const int64_t row = i / groups, first = i % groups * job.group;
    const int64_t count = std::min(job.group, job.k - first);
    const Element* x = job.x + row * job.k + first;
    float amax = 0;
    for (int64_t j = 0; j < count; ++j) {
      const float magnitude = std::fabs(to_float(x[j]));
      if (std::isfinite(magnitude)) amax = std::max(amax, magnitude);
    }
    const float scale = float8_scale(amax);
    job.scales[i] = scale;
    uint8_t* values = job.values + row * job.k + first;
    for (int64_t j = 0; j < count; ++j) values[j] = float_to_e4m3(to_float(x[j]) / scale);
  }
}

#define AEGIS_INSTANTIATE(Element) \
  template void float8_quantize(const Float8Quantize<Element>&, int64_t, int64_t);
AEGIS_FLOAT8_QUANTIZE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::scalar
