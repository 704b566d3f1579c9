#include "kernels/token_probabilities.h"

#include "kernels/token_probabilities_cpu.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                    \
  namespace isa {                             \
  template <class Element>                    \
  const SampleScans<Element>& sample_scans(); \
  template <class Element>                    \
  ShareScan<Element> share_scan();            \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

namespace {

template <class Element, const SampleScans<Element>& (*scans)(), ShareScan<Element> (*shares)()>
void token_probabilities(const TokenProbabilities<Element>& job, int64_t begin, int64_t end) {
  write_rows(scans(), shares(), scratch_of_this_thread(), job, begin, end);
}

}  // namespace

template <class Element>
TokenProbabilitiesKernel<Element> token_probabilities_kernel(Isa isa) {
#define AEGIS_KERNEL(isa) \
  token_probabilities<Element, isa::sample_scans<Element>, isa::share_scan<Element>>
#if AEGIS_X86
  if (isa >= Isa::avx512) return AEGIS_KERNEL(avx512);
  if (isa >= Isa::avx2) return AEGIS_KERNEL(avx2);
#endif
  (void)isa;
  return AEGIS_KERNEL(scalar);
#undef AEGIS_KERNEL
}

#define AEGIS_INSTANTIATE(Element) \
  template TokenProbabilitiesKernel<Element> token_probabilities_kernel<Element>(Isa);
AEGIS_SAMPLE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels
