#include "kernels/extract_batch.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                               \
  namespace isa {                                        \
  template <class Token, class Input>                    \
  void extract_batch(const ExtractBatch<Token, Input>&); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

template <class Token, class Input>
ExtractBatchKernel<Token, Input> extract_batch_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512) return avx512::extract_batch<Token, Input>;
  if (isa >= Isa::avx2) return avx2::extract_batch<Token, Input>;
#endif
  (void)isa;
  return scalar::extract_batch<Token, Input>;
}

#define AEGIS_INSTANTIATE(Token, Input) \
  template ExtractBatchKernel<Token, Input> extract_batch_kernel<Token, Input>(Isa);
AEGIS_EXTRACT_BATCH_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels
