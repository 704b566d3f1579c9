// The oracle: every other version must equal this, bit for bit.
#include "kernels/gather_records_scaled.h"

#include "kernels/scale_value.h"

namespace aegis::kernels::scalar {

template <class Out>
void gather_records_scaled(const GatherRecordsScaled<Out>& job) {
  Out* out = job.out;
  for (int64_t row = 0; row < job.batch; ++row) {
    const uint8_t* value = job.source + job.indices[row] * job.row_stride;
    for (int64_t c = 0; c < job.channels; ++c) {
      for (int64_t i = 0; i < job.channel_size; ++i) {
        *out++ = scale_value<Out>(*value++, job.scale[c], job.bias[c]);
      }
    }
  }
}

#define AEGIS_INSTANTIATE(Out) template void gather_records_scaled(const GatherRecordsScaled<Out>&);
AEGIS_GATHER_RECORDS_SCALED_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::scalar
