// What the vector versions of page_query share: pages go by blocks of 64, and a last part of a
// block is copied into one that is filled up. Included once by each, with its own Block:
//
//   struct Block {
//     static uint64_t equal(const uint8_t*, uint8_t mask, uint8_t value);
//     static uint64_t within(const uint8_t*, uint8_t least, uint8_t most);
//     static uint64_t within(const uint32_t*, uint32_t least, uint32_t most);
//   };
//
// each of which tells something of 64 numbers, the first in bit 0.
#pragma once

#include <cstdint>

#include "kernels/page_query.h"

namespace aegis::kernels {
namespace {

constexpr int64_t kBlock = 64;

/// Of the block of pages that begins at `p`.
template <class Block>
uint64_t block_bits(const PageQuery& q, int64_t p) {
  uint64_t bits = Block::equal(q.flags + p, q.flag_mask, q.flag_value);
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

/// The last part of a block, in memory of its own, so that whole vectors can be read.
struct Rest {
  uint8_t flags[kBlock] = {}, frequencies[kBlock] = {};
  uint32_t epochs[kBlock] = {}, owners[kBlock] = {}, references[kBlock] = {};
  PageQuery query;
  uint64_t real;  ///< bits of pages that there are

  Rest(const PageQuery& q, int64_t begin) : query(q) {
    const int64_t count = q.pages - begin;
    for (int64_t i = 0; i < count; ++i) {
      flags[i] = q.flags[begin + i];
      frequencies[i] = q.frequencies[begin + i];
      epochs[i] = q.epochs[begin + i];
      owners[i] = q.owners[begin + i];
      references[i] = q.references[begin + i];
    }
    query.flags = flags;
    query.frequencies = frequencies;
    query.epochs = epochs;
    query.owners = owners;
    query.references = references;
    real = (uint64_t{1} << count) - 1;
  }
};

bool asks_flags_alone(const PageQuery& q) {
  return q.any_owner && q.least_epoch == 0 && q.most_epoch == UINT32_MAX &&
         q.least_references == 0 && q.most_references == UINT32_MAX && q.least_frequency == 0 &&
         q.most_frequency == UINT8_MAX;
}

template <class Block>
void mask_blocks(const PageQuery& query, uint64_t* bits) {
  const int64_t whole = query.pages / kBlock * kBlock;
  if (asks_flags_alone(query)) {
    const uint8_t* flags = query.flags;
    const uint8_t mask = query.flag_mask, value = query.flag_value;
    for (const uint8_t* end = flags + whole; flags != end; flags += kBlock) {
      *bits++ = Block::equal(flags, mask, value);
    }
  } else {
    for (int64_t p = 0; p < whole; p += kBlock) *bits++ = block_bits<Block>(query, p);
  }
  if (whole == query.pages) return;
  const Rest rest(query, whole);
  *bits = block_bits<Block>(rest.query, 0) & rest.real;
}

/// `Oldest` has look(epochs of a block, bits of the pages that count, first page), which may pass
/// over the greatest epoch, and best(), which is -1 where it saw nothing else.
template <class Block, class Oldest>
int64_t oldest_in_blocks(const PageQuery& query) {
  Oldest oldest;
  uint64_t any = 0;
  const int64_t whole = query.pages / kBlock * kBlock;
  for (int64_t p = 0; p < whole; p += kBlock) {
    const uint64_t bits = block_bits<Block>(query, p);
    if (bits != 0) oldest.look(query.epochs + p, bits, p);
    any |= bits;
  }
  if (whole != query.pages) {
    const Rest rest(query, whole);
    const uint64_t bits = block_bits<Block>(rest.query, 0) & rest.real;
    oldest.look(rest.epochs, bits, whole);
    any |= bits;
  }
  const int64_t best = oldest.best();
  if (best >= 0 || any == 0) return best;
  for (int64_t p = 0; p < whole; p += kBlock) {  // all are of the greatest epoch
    const uint64_t bits = block_bits<Block>(query, p);
    if (bits != 0) return p + __builtin_ctzll(bits);
  }
  const Rest rest(query, whole);
  return whole + __builtin_ctzll(block_bits<Block>(rest.query, 0) & rest.real);
}

/// The page of the lane with the least epoch, and of the first page where equal; -1 where no lane
/// has one (UINT32_MAX).
int64_t best_of_lanes(const uint32_t* epochs, const uint32_t* pages, int lanes) {
  int best = -1;
  for (int i = 0; i < lanes; ++i) {
    if (pages[i] == UINT32_MAX) continue;
    if (best < 0 || epochs[i] < epochs[best] ||
        (epochs[i] == epochs[best] && pages[i] < pages[best])) {
      best = i;
    }
  }
  return best < 0 ? -1 : int64_t{pages[best]};
}

}  // namespace
}  // namespace aegis::kernels
