#include "kernels/float8_quantize.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                                                \
  namespace isa {                                                         \
  template <class Element>                                                \
  void float8_quantize(const Float8Quantize<Element>&, int64_t, int64_t); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

template <class Element>
Float8QuantizeKernel<Element> float8_quantize_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512) return avx512::float8_quantize<Element>;
  if (isa >= Isa::avx2) return avx2::float8_quantize<Element>;
#endif
  (void)isa;
  return scalar::float8_quantize<Element>;
}

#define AEGIS_INSTANTIATE(Element) \
  template Float8QuantizeKernel<Element> float8_quantize_kernel<Element>(Isa);
AEGIS_FLOAT8_QUANTIZE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels
