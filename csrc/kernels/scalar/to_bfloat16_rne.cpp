// The oracle: every other version must equal this, bit for bit.
#include "kernels/to_bfloat16_rne.h"

#include "kernels/convert.h"
#include "kernels/to_bfloat16_runs.h"

namespace aegis::kernels::scalar {
namespace {

struct Convert {
  static uint16_t one(float value) { return float_to_bfloat16(value); }

  static void dense(const float* x, uint16_t* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = one(x[i]);
  }
};

}  // namespace

void to_bfloat16_rne(const ToBfloat16Rne& job, int64_t begin, int64_t end) {
  ToBfloat16Runs<Convert>::convert(job, begin, end);
}

}  // namespace aegis::kernels::scalar
