#include "kernels/float8_linear.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                                           \
  namespace isa {                                                    \
  void float8_spread(const uint8_t*, int64_t, void*);                \
  void float8_linear(const Float8Linear&, int64_t, int64_t);         \
  constexpr Float8LinearKernel kernel{float8_spread, float8_linear}; \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
AEGIS_DECLARE(avx512_bf16)
#endif
#undef AEGIS_DECLARE

#if AEGIS_X86
namespace {

/// Of the CPUs with BF16 instructions, one (Cooper Lake) cannot look bytes up in a table.
bool has_vbmi() {
  static const bool has = __builtin_cpu_supports("avx512vbmi");
  return has;
}

}  // namespace
#endif

Float8LinearKernel float8_linear_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512_bf16 && has_vbmi()) return avx512_bf16::kernel;
  if (isa >= Isa::avx512) return avx512::kernel;
  if (isa >= Isa::avx2) return avx2::kernel;
#endif
  (void)isa;
  return scalar::kernel;
}

}  // namespace aegis::kernels
