#include "core/permutation.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "core/splitmix.h"

namespace aegis {

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t epoch) : n_(n) {
  check<std::invalid_argument>(1 <= n && n <= uint64_t{1} << 63, "n: expected 1 to 2^63, got ", n);
  const int bits = std::max(2, static_cast<int>(std::bit_width(n - 1)));
  low_bits_ = (bits + 1) / 2;
  low_mask_ = (uint64_t{1} << low_bits_) - 1;
  high_mask_ = (uint64_t{1} << (bits - low_bits_)) - 1;
  // Seed and epoch are hashed one after the other: (1, 2) and (2, 1), or sums that agree, share no
  // keys.
  uint64_t state = mix(mix(seed + kGolden) + epoch + kGolden);
  for (uint64_t& key : keys_) key = mix(state += kGolden);
}

uint64_t Permutation::once(uint64_t value) const {
  uint64_t low = value & low_mask_, high = value >> low_bits_;
  for (int round = 0; round < kRounds; round += 2) {
    high = (high ^ mix(low + keys_[round])) & high_mask_;
    low = (low ^ mix(high + keys_[round + 1])) & low_mask_;
  }
  return high << low_bits_ | low;
}

uint64_t Permutation::operator()(uint64_t position) const {
  do {
    position = once(position);
  } while (position >= n_);
  return position;
}

}  // namespace aegis
