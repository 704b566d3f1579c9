#include "kernels/page_query.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                          \
  namespace isa {                                   \
  void page_mask(const PageQuery&, uint64_t* bits); \
  int64_t oldest_page(const PageQuery&);            \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

PageQueryKernel page_query_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512) return {avx512::page_mask, avx512::oldest_page};
  if (isa >= Isa::avx2) return {avx2::page_mask, avx2::oldest_page};
#endif
  (void)isa;
  return {scalar::page_mask, scalar::oldest_page};
}

}  // namespace aegis::kernels
