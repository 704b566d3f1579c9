#include "kernels/ternary_linear.h"

#include <bit>

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                                                     \
  namespace isa {                                                              \
  template <class Element>                                                     \
  void ternary_prepare(const TernaryLinear<Element>&, int64_t, int64_t);       \
  template <class Element>                                                     \
  bool ternary_columns(const TernaryLinear<Element>&, int64_t, int64_t);       \
  template <class Element>                                                     \
  void ternary_prepare_exact(const TernaryLinear<Element>&, int64_t, int64_t); \
  template <class Element>                                                     \
  bool ternary_columns_exact(const TernaryLinear<Element>&, int64_t, int64_t); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512_vnni)
#endif
#undef AEGIS_DECLARE

template <class Element>
TernaryKernels<Element> ternary_kernels(bool exact, Isa isa) {
#define AEGIS_KERNELS_OF(isa)                                           \
  (exact ? TernaryKernels<Element>{isa::ternary_prepare_exact<Element>, \
                                   isa::ternary_columns_exact<Element>} \
         : TernaryKernels<Element>{isa::ternary_prepare<Element>, isa::ternary_columns<Element>})
#if AEGIS_X86
  if (isa >= Isa::avx512_vnni) return AEGIS_KERNELS_OF(avx512_vnni);
  if (isa >= Isa::avx2) return AEGIS_KERNELS_OF(avx2);
#endif
  (void)isa;
  return AEGIS_KERNELS_OF(scalar);
#undef AEGIS_KERNELS_OF
}

#define AEGIS_INSTANTIATE(Element) \
  template TernaryKernels<Element> ternary_kernels<Element>(bool, Isa);
AEGIS_TERNARY_LINEAR_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

bool all_finite(const float* values, int64_t count) {
  uint32_t all = 1;
  for (int64_t i = 0; i < count; ++i) {
    all &= (std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu) < 0x7f800000u;
  }
  return all != 0;
}

}  // namespace aegis::kernels
