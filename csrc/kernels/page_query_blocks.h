// What the vector versions of page_query share. Included once by each, with its own Block:
//
//   struct Block {
//     static uint64_t within(const uint8_t*, uint8_t least, uint8_t most);
//     static uint64_t within(const uint32_t*, uint32_t least, uint32_t most);
//     static uint32_t least(const uint32_t*, uint64_t bits);
//   };
//
// `within` tells of 64 numbers, the first in bit 0, which lie within limits; `least` is the least
// of those whose bits are set, or UINT32_MAX.
#pragma once

#include <cstdint>

#include "kernels/page_query.h"

namespace aegis::kernels {
namespace {

constexpr int64_t kChunk = 256;  // blocks whose flags are looked at together: 2 KiB of bits

/// Of blocks [begin, end): the pages whose flags are as asked for.
inline void flag_bits(const PageQuery& q, int64_t begin, int64_t end, uint64_t* __restrict bits) {
  const bool none = (q.flag_value & ~q.flag_mask) != 0 || q.flag_value >> kFlagPlanes != 0;
  for (int64_t b = begin; b < end; ++b) bits[b - begin] = none ? 0 : ~uint64_t{0};
  for (int flag = 0; flag < kFlagPlanes && !none; ++flag) {
    if ((q.flag_mask >> flag & 1) == 0) continue;
    const uint64_t* __restrict plane = q.flags + flag * q.blocks() + begin;
    const uint64_t flip = (q.flag_value >> flag & 1) != 0 ? 0 : ~uint64_t{0};
    for (int64_t b = 0; b < end - begin; ++b) bits[b] &= plane[b] ^ flip;
  }
  if (end == q.blocks() && q.pages % kPagesOfABlock != 0) {
    bits[end - begin - 1] &= (uint64_t{1} << q.pages % kPagesOfABlock) - 1;
  }
}

inline bool asks_flags_alone(const PageQuery& q) {
  return q.any_owner && q.least_epoch == 0 && q.most_epoch == UINT32_MAX &&
         q.least_references == 0 && q.most_references == UINT32_MAX && q.least_frequency == 0 &&
         q.most_frequency == UINT8_MAX;
}

/// Of the pages `bits` of a block, those whose numbers are as asked for.
template <class Block>
uint64_t number_bits(const PageQuery& q, int64_t block, uint64_t bits) {
  const int64_t p = block * kPagesOfABlock;
  if (bits == 0) return 0;
  if (!q.any_owner) bits &= Block::within(q.owners + p, q.owner, q.owner);
  if (q.least_epoch != 0 || q.most_epoch != UINT32_MAX) {
    bits &= Block::within(q.epochs + p, q.least_epoch, q.most_epoch);
  }
  if (q.least_references != 0 || q.most_references != UINT32_MAX) {
    bits &= Block::within(q.references + p, q.least_references, q.most_references);
  }
  if (q.least_frequency != 0 || q.most_frequency != UINT8_MAX) {
    bits &= Block::within(q.frequencies + p, q.least_frequency, q.most_frequency);
  }
  return bits;
}

template <class Block>
void mask_blocks(const PageQuery& query, uint64_t* bits) {
  const int64_t blocks = query.blocks();
  const bool flags_alone = asks_flags_alone(query);
  for (int64_t begin = 0; begin < blocks; begin += kChunk) {
    const int64_t end = begin + kChunk < blocks ? begin + kChunk : blocks;
    flag_bits(query, begin, end, bits + begin);
    for (int64_t b = begin; b < end && !flags_alone; ++b) {
      bits[b] = number_bits<Block>(query, b, bits[b]);
    }
  }
}

/// The oldest page so far, the first of several.
template <class Block>
struct Oldest {
  int64_t page = -1;
  uint32_t epoch = UINT32_MAX;

  /// Whether no page of a block whose epochs are `bound` and more can take its place.
  bool beats(int64_t block, uint32_t bound) const {
    return page >= 0 && (bound > epoch || (bound == epoch && block * kPagesOfABlock > page));
  }

  /// Looks at pages `bits` of a block, of any place.
  void look(const PageQuery& query, int64_t block, uint64_t bits) {
    const uint32_t* epochs = query.epochs + block * kPagesOfABlock;
    const bool before = block * kPagesOfABlock < page;  // then an equal epoch counts
    if (page >= 0) {
      if (epoch == 0 && !before) return;
      bits &= Block::within(epochs, 0, before ? epoch : epoch - 1);
    }
    if (bits == 0) return;
    epoch = Block::least(epochs, bits);
    page = block * kPagesOfABlock + __builtin_ctzll(bits & Block::within(epochs, epoch, epoch));
  }
};

/// Goes through the blocks whose bounds are low enough: first the one of the least, so that few
/// are.
template <class Block>
int64_t oldest_by_bounds(const PageQuery& query) {
  const int64_t blocks = query.blocks();
  PageQuery bounded = query;  // the pages that bounds are of
  bounded.flag_mask = bounded.flag_value = query.bounded;
  const auto end = [&](int64_t group) {
    return blocks - group < kPagesOfABlock ? blocks : group + kPagesOfABlock;
  };
  const auto real = [&](int64_t group) { return ~uint64_t{0} >> (64 - (end(group) - group)); };

  Oldest<Block> oldest;
  // The blocks `low` of 64, unless one before them has ruled them out.
  const auto look = [&](int64_t group, uint64_t low) {
    uint64_t wanted[kPagesOfABlock], of_bound[kPagesOfABlock];
    flag_bits(query, group, end(group), wanted);
    flag_bits(bounded, group, end(group), of_bound);
    for (; low != 0; low &= low - 1) {
      const int64_t at = __builtin_ctzll(low), block = group + at;
      uint32_t& bound = query.bounds[block];
      if (oldest.beats(block, bound)) continue;
      bound = Block::least(query.epochs + block * kPagesOfABlock, of_bound[at]);
      if (oldest.beats(block, bound)) continue;
      oldest.look(query, block, number_bits<Block>(query, block, wanted[at]));
    }
  };

  int64_t seed = 0;
  uint32_t least = UINT32_MAX;
  for (int64_t group = 0; group < blocks; group += kPagesOfABlock) {
    const uint32_t here = Block::least(query.bounds + group, real(group));
    if (here >= least) continue;
    least = here;
    seed = group;
  }
  const uint64_t first = Block::within(query.bounds + seed, least, least) & real(seed);
  look(seed, first & -first);
  for (int64_t group = 0; group < blocks; group += kPagesOfABlock) {
    const uint64_t low = Block::within(query.bounds + group, 0, oldest.epoch) & real(group);
    if (low != 0) look(group, low);
  }
  return oldest.page;
}

template <class Block>
int64_t oldest_in_blocks(const PageQuery& query) {
  const bool wants_bounded = (query.flag_mask & query.flag_value & query.bounded) == query.bounded;
  if (query.bounds != nullptr && wants_bounded && query.pages > 0) {
    return oldest_by_bounds<Block>(query);
  }
  uint64_t bits[kChunk];
  Oldest<Block> oldest;
  const int64_t blocks = query.blocks();
  for (int64_t begin = 0; begin < blocks; begin += kChunk) {
    const int64_t end = begin + kChunk < blocks ? begin + kChunk : blocks;
    flag_bits(query, begin, end, bits);
    for (int64_t b = begin; b < end; ++b) {
      const uint64_t here = number_bits<Block>(query, b, bits[b - begin]);
      if (here != 0) oldest.look(query, b, here);
    }
  }
  return oldest.page;
}

}  // namespace
}  // namespace aegis::kernels
