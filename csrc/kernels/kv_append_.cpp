#include "kernels/kv_append_.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                           \
  namespace isa {                                    \
  void kv_append(const KvAppend&, int64_t, int64_t); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

KvAppendKernel kv_append_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512) return avx512::kv_append;
  if (isa >= Isa::avx2) return avx2::kv_append;
#endif
  (void)isa;
  return scalar::kv_append;
}

}  // namespace aegis::kernels
