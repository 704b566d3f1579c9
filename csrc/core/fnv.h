// FNV-1a (Fowler, Noll, Vo; draft-eastlake-fnv): a checksum that depends on the order of its bytes.
// It is not cryptographic: whoever wants to can find other bytes with the same value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace aegis {

template <class Word>
struct Fnv;

template <>
struct Fnv<uint32_t> {
  static constexpr uint32_t kBasis = 0x811C9DC5;
  static constexpr uint32_t kPrime = 0x01000193;
};

template <>
struct Fnv<uint64_t> {
  static constexpr uint64_t kBasis = 0xCBF29CE484222325;
  static constexpr uint64_t kPrime = 0x00000100000001B3;
};

/// `state` after `bytes`. Begin with Fnv<Word>::kBasis. Each byte waits for the multiplication of
/// the one before: about four cycles a byte.
template <class Word>
constexpr Word fnv1a(Word state, std::span<const std::byte> bytes) {
  for (std::byte byte : bytes) state = (state ^ static_cast<uint8_t>(byte)) * Fnv<Word>::kPrime;
  return state;
}

/// `state` after the lowest `bytes` (at most 8) of `value`, lowest first, on any machine.
template <class Word>
constexpr Word fnv1a_number(Word state, uint64_t value, int bytes) {
  for (; bytes > 0; --bytes, value >>= 8) {
    state = (state ^ static_cast<uint8_t>(value)) * Fnv<Word>::kPrime;
  }
  return state;
}

}  // namespace aegis
