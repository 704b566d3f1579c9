#include "core/integrity_chain.h"

#include <bit>

#include "core/check.h"
#include "core/fnv.h"
#include "kernels/fnv_lanes.h"

namespace aegis {

IntegrityChain::IntegrityChain(int bits, bool lanes) : state_{bits, lanes, 0, 0} {
  check<std::invalid_argument>(bits == 32 || bits == 64, "bits: expected 32 or 64, got ", bits);
  state_.value = bits == 32 ? Fnv<uint32_t>::kBasis : Fnv<uint64_t>::kBasis;
}

void IntegrityChain::add(int64_t step, double loss, const std::vector<Part>& parts) {
  feed_number(static_cast<uint64_t>(step), 8);
  feed_number(std::bit_cast<uint64_t>(loss), 8);
  feed_number(parts.size(), 8);
  for (const Part& part : parts) {
    feed_number(part.size(), 8);
    if (state_.lanes) {
      feed_number(kernels::fnv_lanes_digest(part.data(), static_cast<int64_t>(part.size())), 4);
    } else {
      feed(part);
    }
  }
  ++state_.records;
}

void IntegrityChain::restore(const State& state) {
  check<std::invalid_argument>(state.bits == state_.bits && state.lanes == state_.lanes,
                               "state: expected one of ", state_.bits, " bits ",
                               state_.lanes ? "with" : "without", " lanes, got ", state.bits,
                               " bits ", state.lanes ? "with" : "without", " lanes");
  check<std::invalid_argument>(state.bits == 64 || state.value <= UINT32_MAX,
                               "state: expected a value of 32 bits, got ", state.value);
  state_ = state;
}

void IntegrityChain::feed(Part bytes) {
  state_.value = state_.bits == 32 ? fnv1a(static_cast<uint32_t>(state_.value), bytes)
                                   : fnv1a(state_.value, bytes);
}

void IntegrityChain::feed_number(uint64_t number, int bytes) {
  state_.value = state_.bits == 32
                     ? fnv1a_number(static_cast<uint32_t>(state_.value), number, bytes)
                     : fnv1a_number(state_.value, number, bytes);
}

}  // namespace aegis
