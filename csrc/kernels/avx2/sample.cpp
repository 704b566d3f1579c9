#include "kernels/sample_avx2.h"

namespace aegis::kernels::avx2 {

template <class Element>
const SampleScans<Element>& sample_scans() {
  return SampleLoops<Lanes<Element>>::kScans;
}

#define AEGIS_INSTANTIATE(Element) template const SampleScans<Element>& sample_scans();
AEGIS_SAMPLE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::avx2
