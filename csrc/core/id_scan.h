// The smallest and the largest of many token ids, and the first that is outside of a vocabulary.
#pragma once

#include <cstdint>
#include <limits>

#include "core/dtype.h"

namespace aegis {

struct IdScan {
  int64_t smallest = std::numeric_limits<int64_t>::max();
  int64_t largest = std::numeric_limits<int64_t>::min();
  int64_t first_outside = -1;  ///< position of the first id below 0 or at `limit` or above, or -1
};

/// Scans `count` tokens at `tokens`, which must be aligned for their type, on up to `threads`
/// threads. Cost: one pass at about the speed of memory.
IdScan scan_ids(TokenType type, const void* tokens, int64_t count,
                int64_t limit = std::numeric_limits<int64_t>::max(), int threads = 1);

}  // namespace aegis
