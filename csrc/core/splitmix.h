// The hash of SplitMix64 (Steele, Lea and Flood, 2014).
#pragma once

#include <cstdint>

namespace aegis {

/// Its increment: 2^64 over the golden ratio, made odd.
inline constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

/// Its finaliser, a bijection: every output bit depends on every input bit.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace aegis
