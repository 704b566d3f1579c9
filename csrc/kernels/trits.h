// The public format of ternary weights: 16 trits to a 32-bit word.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace aegis::kernels {

/// Trit i of a word is in its bits 2i and 2i + 1: 00 is 0, 01 is +1, 10 is -1; 11 is refused.
/// Rows begin with a word of their own, and the trits that fill up their last word are zero.
constexpr int64_t kTritsInWord = 16;
constexpr uint32_t kLowBits = 0x55555555;

/// Words of a row of `k` trits.
AEGIS_HOST_DEVICE constexpr int64_t trit_words(int64_t k) {
  return k / kTritsInWord + (k % kTritsInWord != 0);  // no sum that could overflow
}

}  // namespace aegis::kernels
