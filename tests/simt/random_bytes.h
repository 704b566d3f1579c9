#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace aegis::simt {

inline std::vector<std::byte> random_bytes(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace aegis::simt
