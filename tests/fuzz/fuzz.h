// What the fuzzers share. Each feeds a parser with any bytes: it may refuse them by one kind of
// exception, and what it accepts must keep its promises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

#include "core/token_index.h"

namespace aegis::fuzz {

/// Stops the fuzzer, which keeps the input, unless `condition` holds.
inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

/// Calls `parse`, which may throw std::invalid_argument and nothing else.
template <class F>
void refusing(F&& parse) {
  try {
    parse();
  } catch (const std::invalid_argument& error) {
    require(std::strlen(error.what()) > 0);
  }
}

/// A number from the begin of the input, which `bytes` then lacks; 0 where it is too short.
template <class T>
T take(std::span<const std::byte>& bytes) {
  T value{};
  if (bytes.size() < sizeof value) return value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes = bytes.subspan(sizeof value);
  return value;
}

/// What TokenIndex and DocumentOffsets promise about a file of `size` bytes.
inline void check_promises(const TokenIndex& index, const DocumentOffsets& offsets, int64_t size) {
  const auto item = static_cast<int64_t>(size_of(index.type));
  require(index.tokens >= 1 && index.byte_offset >= 0 && index.byte_offset <= size);
  require(index.tokens <= (size - index.byte_offset) / item);
  require(index.byte_offset + index.tokens * item == size);
  require(static_cast<int64_t>(offsets.size()) == index.documents + 1);
  require(offsets.front() == 0 && offsets.back() == index.tokens);
  for (size_t i = 1; i < offsets.size(); ++i) require(offsets[i - 1] <= offsets[i]);
}

}  // namespace aegis::fuzz

#define AEGIS_FUZZER(bytes)                                                 \
  static void fuzz_one(std::span<const std::byte> bytes);                   \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    fuzz_one(std::as_bytes(std::span(data, size)));                         \
    return 0;                                                               \
  }                                                                         \
  static void fuzz_one(std::span<const std::byte> bytes)
