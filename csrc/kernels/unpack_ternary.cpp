#include "kernels/unpack_ternary.h"

#include <bit>

namespace aegis::kernels {

int64_t first_bad_trit(const uint32_t* words, int64_t k) {
  for (int64_t word = 0; word < trit_words(k); ++word) {
    const int64_t used = k - word * kTritsInWord;
    const uint32_t padding = used < kTritsInWord ? ~uint32_t{0} << 2 * used : 0;
    const uint32_t code = words[word];
    const uint32_t bad = (code & code >> 1 & kLowBits) | (code & padding);
    if (bad) return word * kTritsInWord + std::countr_zero(bad) / 2;
  }
  return -1;
}

}  // namespace aegis::kernels
