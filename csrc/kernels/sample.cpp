#include "kernels/sample.h"

#include "kernels/sample_cpu.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                    \
  namespace isa {                             \
  template <class Element>                    \
  const SampleScans<Element>& sample_scans(); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

namespace {

template <class Element, const SampleScans<Element>& (*scans)()>
void sample(const Sample<Element>& job, int64_t begin, int64_t end) {
  sample_rows(scans(), scratch_of_this_thread(), job, begin, end);
}

}  // namespace

template <class Element>
SampleKernel<Element> sample_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512) return sample<Element, avx512::sample_scans<Element>>;
  if (isa >= Isa::avx2) return sample<Element, avx2::sample_scans<Element>>;
#endif
  (void)isa;
  return sample<Element, scalar::sample_scans<Element>>;
}

#define AEGIS_INSTANTIATE(Element) template SampleKernel<Element> sample_kernel<Element>(Isa);
AEGIS_SAMPLE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels
