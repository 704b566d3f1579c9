// The oracle: every other version must equal this, bit for bit.
#include "kernels/extract_batch.h"

#include "kernels/saturate.h"

namespace aegis::kernels::scalar {

template <class Token, class Input>
void extract_batch(const ExtractBatch<Token, Input>& job) {
  for (int64_t row = 0; row < job.batch; ++row) {
    const Token* window = job.arena + job.offsets[row];
    Input* inputs = job.inputs + row * job.block_size;
    int64_t* targets = job.targets + row * job.block_size;
    for (int64_t i = 0; i < job.block_size; ++i) {
      inputs[i] = saturate<Input>(window[i]);
      targets[i] = window[i + 1];
    }
  }
}

#define AEGIS_INSTANTIATE(Token, Input) \
  template void extract_batch(const ExtractBatch<Token, Input>&);
AEGIS_EXTRACT_BATCH_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::scalar
