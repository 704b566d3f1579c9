// What the CPU and CUDA sides of extract_batch have in common: the checks.
#pragma once

#include "ops/abi.h"

namespace aegis::ops {

/// The arguments of extract_batch, checked as far as shapes and types go; the offsets' values are
/// not looked at.
struct ExtractShape {
  TokenType token;
  int64_t tokens;  ///< in the arena
  int64_t batch;
  int64_t block_size;
};

inline ExtractShape check_extract(const Tensor& arena, const Tensor& offsets, int64_t block_size) {
  const TokenType token = token_type_of(arena, "arena");
  check_vector(arena, "arena");
  check_dtype(offsets, ScalarType::Long, "offsets");
  check_vector(offsets, "offsets");
  check_same_device(offsets, arena, "offsets", "arena");
  check<std::invalid_argument>(0 < block_size && block_size < arena.numel(),
                               "block_size: expected 1 to ", arena.numel() - 1, " (the arena has ",
                               arena.numel(), " tokens), got ", block_size);
  return {token, arena.numel(), offsets.numel(), block_size};
}

/// Checks the two tensors that extract_batch.out writes.
inline void check_extract_out(const ExtractShape& shape, const Tensor& arena, const Tensor& offsets,
                              const Tensor& inputs, const Tensor& targets) {
  const bool wide = inputs.scalar_type() == ScalarType::Long;
  check<std::invalid_argument>(wide || inputs.scalar_type() == ScalarType::Int,
                               "inputs: expected dtype int64 or int32, got ",
                               name_of(inputs.scalar_type()));
  check_dtype(targets, ScalarType::Long, "targets");
  check_matrix(inputs, shape.batch, shape.block_size, "inputs");
  check_matrix(targets, shape.batch, shape.block_size, "targets");
  check_same_device(inputs, arena, "inputs", "arena");
  check_same_device(targets, arena, "targets", "arena");
  const Extent in = extent_of(inputs, wide ? 8 : 4), out = extent_of(targets, 8);
  const Extent source = extent_of(arena, size_of(shape.token)), starts = extent_of(offsets, 8);
  check_disjoint(in, out, "inputs", "targets");
  check_disjoint(in, source, "inputs", "arena");
  check_disjoint(in, starts, "inputs", "offsets");
  check_disjoint(out, source, "targets", "arena");
  check_disjoint(out, starts, "targets", "offsets");
}

}  // namespace aegis::ops
