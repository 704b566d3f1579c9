// The oracle: shares, in a plain loop.
#include "kernels/sample.h"
#include "kernels/sample_scalar.h"
#include "kernels/sample_scans.h"

namespace aegis::kernels::scalar {
namespace {

template <class Element>
void shares(const Element* row, int64_t begin, int64_t end, const Weighing& weighing, bool ties,
            float share, float* out) {
  for (int64_t i = begin; i < end; ++i) {
    const float value = to_float(row[i]);
    const float weight = weight_of(value, weighing.peak, weighing.scale);
    const bool within = value > weighing.at || (ties && value == weighing.at);
    out[i] = within && weight >= weighing.floor ? weight * share : 0;
  }
}

}  // namespace

template <class Element>
ShareScan<Element> share_scan() {
  return shares<Element>;
}

#define AEGIS_INSTANTIATE(Element) template ShareScan<Element> share_scan();
AEGIS_SAMPLE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::scalar
