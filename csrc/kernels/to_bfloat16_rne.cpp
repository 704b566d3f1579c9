#include "kernels/to_bfloat16_rne.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                                                \
  namespace isa {                                                         \
  void to_bfloat16_rne(const ToBfloat16Rne&, int64_t begin, int64_t end); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

ToBfloat16RneKernel to_bfloat16_rne_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512) return avx512::to_bfloat16_rne;
  if (isa >= Isa::avx2) return avx2::to_bfloat16_rne;
#endif
  (void)isa;
  return scalar::to_bfloat16_rne;
}

}  // namespace aegis::kernels
