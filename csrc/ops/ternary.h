// Checks of packed ternary weights, for the ops that make them and read them.
#pragma once

#include "kernels/trits.h"
#include "ops/abi.h"

namespace aegis::ops {

/// `scale` has one number for each of `n` rows, or one for all, where `like` lives.
inline void check_scale(const Tensor& scale, int64_t n, const Tensor& like, const char* like_name) {
  check_dtype(scale, ScalarType::Float, "scale");
  check<std::invalid_argument>(scale.dim() == 1 && (scale.size(0) == n || scale.size(0) == 1),
                               "scale: expected shape [", n, "] (the rows) or [1], got ",
                               shape_of(scale));
  check_same_device(scale, like, "scale", like_name);
}

/// `packed` is rows of `k` trits.
inline void check_packed(const Tensor& packed, int64_t k) {
  check_dtype(packed, ScalarType::UInt32, "packed");
  check<std::invalid_argument>(
      packed.dim() == 2 && packed.size(1) == kernels::trit_words(k) && packed.is_contiguous(),
      "packed: expected a contiguous 2-D tensor with ", kernels::trit_words(k),
      " words in a row (for ", k, " trits), got shape ", shape_of(packed),
      packed.is_contiguous() ? "" : ", not contiguous");
}

}  // namespace aegis::ops
