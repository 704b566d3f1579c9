#include "kernels/page_query.h"

namespace aegis::kernels::scalar {
namespace {

bool holds(const PageQuery& q, int64_t p) {
  return (q.flags[p] & q.flag_mask) == q.flag_value && (q.any_owner || q.owners[p] == q.owner) &&
         q.least_epoch <= q.epochs[p] && q.epochs[p] <= q.most_epoch &&
         q.least_references <= q.references[p] && q.references[p] <= q.most_references &&
         q.least_frequency <= q.frequencies[p] && q.frequencies[p] <= q.most_frequency;
}

}  // namespace

void page_mask(const PageQuery& query, uint64_t* bits) {
  for (int64_t p = 0; p < query.pages; ++p) {
    if (p % 64 == 0) bits[p / 64] = 0;
    bits[p / 64] |= uint64_t{holds(query, p)} << (p % 64);
  }
}

int64_t oldest_page(const PageQuery& query) {
  int64_t oldest = -1;
  for (int64_t p = 0; p < query.pages; ++p) {
    if (holds(query, p) && (oldest < 0 || query.epochs[p] < query.epochs[oldest])) oldest = p;
  }
  return oldest;
}

}  // namespace aegis::kernels::scalar
