#include "kernels/skinny_linear.h"

#include <type_traits>

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                                            \
  namespace isa {                                                     \
  template <class Element>                                            \
  void skinny_linear(const SkinnyLinear<Element>&, int64_t, int64_t); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
AEGIS_DECLARE(avx512_bf16)  // for BFloat16 alone
#endif
#undef AEGIS_DECLARE

template <class Element>
SkinnyLinearKernel<Element> skinny_linear_kernel(Isa isa) {
#if AEGIS_X86
  if constexpr (std::is_same_v<Element, BFloat16>) {
    if (isa >= Isa::avx512_bf16) return avx512_bf16::skinny_linear<Element>;
  }
  if (isa >= Isa::avx512) return avx512::skinny_linear<Element>;
  if (isa >= Isa::avx2) return avx2::skinny_linear<Element>;
#endif
  (void)isa;
  return scalar::skinny_linear<Element>;
}

#define AEGIS_INSTANTIATE(Element) \
  template SkinnyLinearKernel<Element> skinny_linear_kernel<Element>(Isa);
AEGIS_SKINNY_LINEAR_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels
