// Block tables, by which operators find the pages of a KV cache.
#pragma once

#include "ops/abi.h"

namespace aegis::ops {

/// Everything but its values.
inline void check_blocks(const Tensor& blocks, const Tensor& keys) {
  check_dtype(blocks, ScalarType::Long, "blocks");
  check<std::invalid_argument>(blocks.dim() == 2, "blocks: expected shape (rows, blocks), got ",
                               shape_of(blocks));
  check<std::invalid_argument>(blocks.size(1) <= 1 || blocks.stride(1) == 1,
                               "blocks: expected adjacent elements in the last dimension (stride "
                               "1), got stride ",
                               blocks.stride(1));
  check_same_device(blocks, keys, "blocks", "keys");
  check<std::invalid_argument>(keys.size(2) > 0, "keys: expected at least 1 slot, got none");
}

/// The pages of positions [begin, end) of a row, where end is at most what `blocks` has room for.
/// For CPU memory.
inline void check_pages(const int64_t* row_blocks, int64_t row, int64_t begin, int64_t end,
                        int64_t slots, int64_t pages) {
  if (begin == end) return;
  for (int64_t i = begin / slots; i <= (end - 1) / slots; ++i) {
    check<std::out_of_range>(0 <= row_blocks[i] && row_blocks[i] < pages, "blocks[", row, ", ", i,
                             "]: expected a page in [0, ", pages, "), got ", row_blocks[i]);
  }
}

}  // namespace aegis::ops
