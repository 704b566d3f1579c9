#include "kernels/sample_avx512.h"

namespace aegis::kernels::avx512 {

template <class Element>
ShareScan<Element> share_scan() {
  return SampleLoops<Lanes<Element>>::shares;
}

#define AEGIS_INSTANTIATE(Element) template ShareScan<Element> share_scan();
AEGIS_SAMPLE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::avx512
