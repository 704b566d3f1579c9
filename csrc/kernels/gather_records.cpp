#include "kernels/gather_records.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                   \
  namespace isa {                            \
  void gather_records(const GatherRecords&); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

GatherRecordsKernel gather_records_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512) return avx512::gather_records;
  if (isa >= Isa::avx2) return avx2::gather_records;
#endif
  (void)isa;
  return scalar::gather_records;
}

}  // namespace aegis::kernels
