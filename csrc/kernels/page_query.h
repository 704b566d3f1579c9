// page_query: which of a million pages a predicate holds for, and which of those is the oldest.
#pragma once

#include <cstdint>

#include "core/cpu.h"

namespace aegis::kernels {

constexpr int kFlagPlanes = 5;  // flags that pages have
constexpr int64_t kPagesOfABlock = 64;

/// Arrays of PageTable::Shadows, and what is asked of each page: all of it must hold. Limits are
/// inclusive; what a limit leaves open is not read. Pages go by blocks of 64, and arrays of numbers
/// can be read to the end of the last block.
struct PageQuery {
  /// kFlagPlanes planes, one behind the other, of a word for each block: bit p % 64 of word p / 64
  /// of plane f is bit f of page p's flags. Bits behind the last page may be anything.
  const uint64_t* flags;
  const uint32_t* epochs;
  const uint32_t* owners;
  const uint32_t* references;
  const uint8_t* frequencies;
  int64_t pages;
  uint8_t flag_mask = 0, flag_value = 0;  ///< flags & mask == value
  bool any_owner = true;
  uint32_t owner = 0;
  uint32_t least_epoch = 0, most_epoch = UINT32_MAX;
  uint32_t least_references = 0, most_references = UINT32_MAX;
  uint8_t least_frequency = 0, most_frequency = UINT8_MAX;

  /// For each block, a number at most the least epoch of its pages that have all of `bounded`'s
  /// flags; the array can be read to a whole 64 blocks. Null: none. An oldest() that asks for these
  /// flags skips the blocks that cannot have it by them, and raises bounds that it finds too low.
  uint32_t* bounds = nullptr;
  uint8_t bounded = 0;

  int64_t blocks() const { return (pages + kPagesOfABlock - 1) / kPagesOfABlock; }
};

struct PageQueryKernel {
  /// Bit p % 64 of bits[p / 64] becomes whether the query holds for page p; (pages + 63) / 64 words
  /// are written.
  void (*mask)(const PageQuery&, uint64_t* bits);
  /// The page of the least epoch that the query holds for, the first of several; -1: none.
  int64_t (*oldest)(const PageQuery&);
};

/// The fastest kernel at or below `isa`. Costs a table look-up.
PageQueryKernel page_query_kernel(Isa isa = active_isa());

}  // namespace aegis::kernels
