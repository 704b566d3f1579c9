#include "kernels/page_query.h"

namespace aegis::kernels::scalar {
namespace {

/// Of a block, the pages that there are and whose flags are as asked for.
uint64_t flags_hold(const PageQuery& q, int64_t block) {
  uint64_t bits = ~uint64_t{0};
  for (int flag = 0; flag < 8; ++flag) {
    const uint64_t plane = flag < kFlagPlanes ? q.flags[flag * q.blocks() + block] : 0;
    const bool mask = (q.flag_mask >> flag & 1) != 0, value = (q.flag_value >> flag & 1) != 0;
    bits &= (mask ? plane : 0) ^ (value ? 0 : ~uint64_t{0});
  }
  const int64_t pages = q.pages - block * kPagesOfABlock;
  return pages < kPagesOfABlock ? bits & ((uint64_t{1} << pages) - 1) : bits;
}

bool numbers_hold(const PageQuery& q, int64_t p) {
  return (q.any_owner || q.owners[p] == q.owner) && q.least_epoch <= q.epochs[p] &&
         q.epochs[p] <= q.most_epoch && q.least_references <= q.references[p] &&
         q.references[p] <= q.most_references && q.least_frequency <= q.frequencies[p] &&
         q.frequencies[p] <= q.most_frequency;
}

/// Calls `found(page)` for every page that the query holds for, in order.
template <class Found>
void for_each_page(const PageQuery& q, Found found) {
  for (int64_t block = 0; block < q.blocks(); ++block) {
    for (uint64_t bits = flags_hold(q, block); bits != 0; bits &= bits - 1) {
      const int64_t page = block * kPagesOfABlock + __builtin_ctzll(bits);
      if (numbers_hold(q, page)) found(page);
    }
  }
}

}  // namespace

void page_mask(const PageQuery& query, uint64_t* bits) {
  for (int64_t block = 0; block < query.blocks(); ++block) bits[block] = 0;
  for_each_page(query, [&](int64_t p) { bits[p / 64] |= uint64_t{1} << p % 64; });
}

// Without the bounds: what it finds is what the others must find.
int64_t oldest_page(const PageQuery& query) {
  int64_t oldest = -1;
  for_each_page(query, [&](int64_t p) {
    if (oldest < 0 || query.epochs[p] < query.epochs[oldest]) oldest = p;
  });
  return oldest;
}

}  // namespace aegis::kernels::scalar
