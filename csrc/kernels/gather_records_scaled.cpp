#include "kernels/gather_records_scaled.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                                     \
  namespace isa {                                              \
  template <class Out>                                         \
  void gather_records_scaled(const GatherRecordsScaled<Out>&); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

template <class Out>
GatherRecordsScaledKernel<Out> gather_records_scaled_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512) return avx512::gather_records_scaled<Out>;
  if (isa >= Isa::avx2) return avx2::gather_records_scaled<Out>;
#endif
  (void)isa;
  return scalar::gather_records_scaled<Out>;
}

#define AEGIS_INSTANTIATE(Out) \
  template GatherRecordsScaledKernel<Out> gather_records_scaled_kernel<Out>(Isa);
AEGIS_GATHER_RECORDS_SCALED_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels
