#include "kernels/unpack_ternary.h"

namespace aegis::kernels {

void unpack_row(const uint32_t* words, int64_t k, float scale, float* out) {
  const float meanings[] = {0, scale, -scale, 0};
  for (int64_t i = 0; i < k; ++i) {
    out[i] = meanings[words[i / kTritsInWord] >> 2 * (i % kTritsInWord) & 3];
  }
}

}  // namespace aegis::kernels
