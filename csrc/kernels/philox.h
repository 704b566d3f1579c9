// Philox4x32-10: a counter-based generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
// as easy as 1, 2, 3", 2011). Any number is computed from its name alone.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace aegis::kernels {

struct Philox {
  uint32_t words[4];
};

/// The block of random words that `counter` and `key` name.
AEGIS_HOST_DEVICE inline Philox philox(Philox counter, uint64_t key) {
  uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53} * counter.words[0];
    const uint64_t b = uint64_t{0xcd9e8d57} * counter.words[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.words[1] ^ low, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.words[3] ^ high,
                static_cast<uint32_t>(a)}};
    low += 0x9e3779b9;
    high += 0xbb67ae85;
  }
  return counter;
}

/// A number in (0, 1), both ends excluded, in steps of 2⁻⁵². `row` counts modulo 2⁴⁸ and `domain`
/// modulo 2¹⁶: within these, different names never share a block.
AEGIS_HOST_DEVICE inline double uniform(int64_t seed, int64_t row, int64_t position,
                                        int64_t domain) {
  const auto at = static_cast<uint64_t>(position), of = static_cast<uint64_t>(row);
  const Philox random = philox({{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
                                 static_cast<uint32_t>(of),
                                 static_cast<uint32_t>(of >> 32 & 0xffff) |
                                     static_cast<uint32_t>(domain) << 16}},
                               static_cast<uint64_t>(seed));
  const uint64_t bits = uint64_t{random.words[1]} << 32 | random.words[0];
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

}  // namespace aegis::kernels
