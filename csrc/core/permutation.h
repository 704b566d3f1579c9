// A shuffle that needs no memory: a keyed bijection of 0 .. n-1, evaluated one position at a time.
#pragma once

#include <array>
#include <cstdint>

namespace aegis {

/// A pseudorandom permutation of [0, n) for any 1 <= n <= 2^63, keyed by a hash of (seed, epoch).
///
/// An alternating Feistel network permutes the smallest power of two that holds n; positions that
/// land at n or above are walked along their cycle until they come back below it ("cycle walking":
/// Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002). From n = 3 on, the power of two
/// is less than 2n, so a look-up walks fewer than two steps on average: about 25 ns. Not a cipher:
/// neighbouring keys are unrelated, but nothing is kept secret.
///
/// The mapping is part of the format of saved loader states and never changes for given (n, seed,
/// epoch).
class Permutation {
 public:
  /// Throws std::invalid_argument unless 1 <= n <= 2^63.
  Permutation(uint64_t n, uint64_t seed, uint64_t epoch);

  /// The value at `position`, which must be below size().
  uint64_t operator()(uint64_t position) const;

  uint64_t size() const { return n_; }

 private:
  static constexpr int kRounds = 8;

  uint64_t once(uint64_t value) const;

  uint64_t n_;
  int low_bits_;  // the network's halves: value = high << low_bits_ | low
  uint64_t low_mask_;
  uint64_t high_mask_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace aegis
