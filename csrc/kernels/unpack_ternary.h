// unpack_ternary: trits back to weights.
#pragma once

#include <cstdint>

#include "kernels/trits.h"

namespace aegis::kernels {

/// The first trit of a row of `k` whose code is 11, or which lies past `k` and is not zero; -1
/// where all are as they should be.
int64_t first_bad_trit(const uint32_t* words, int64_t k);

/// Writes `k` times -scale, 0 or +scale. The row has no bad trit.
void unpack_row(const uint32_t* words, int64_t k, float scale, float* out);

}  // namespace aegis::kernels
