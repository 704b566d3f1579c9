// The oracle: sums in the order of memory.
#include "kernels/skinny_linear.h"

namespace aegis::kernels::scalar {

template <class Element>
void skinny_linear(const SkinnyLinear<Element>& job, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end; ++column) {
    const Element* weight = job.weight + column * job.weight_stride;
    for (int64_t row = 0; row < job.rows; ++row) {
      const Element* x = job.x + row * job.k;
      float sum = 0;
      for (int64_t i = 0; i < job.k; ++i) sum += to_float(x[i]) * to_float(weight[i]);
      if (job.bias) sum += to_float(job.bias[column]);
      job.out[row * job.n + column] = from_float<Element>(sum);
    }
  }
}

#define AEGIS_INSTANTIATE(Element) \
  template void skinny_linear(const SkinnyLinear<Element>&, int64_t, int64_t);
AEGIS_SKINNY_LINEAR_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::scalar
