#include "core/copy_rows.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace aegis {
namespace {

#ifdef __SSE2__

constexpr size_t kLine = 64;

/// SSE2 is enough: the processor joins four stores to the line that goes to memory, and wider
/// registers were measured to be no faster.
void copy_past_caches(std::byte* out, const std::byte* in, size_t bytes) {
  const size_t to_line = (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine;
  const size_t head = to_line < bytes ? to_line : bytes;
  std::memcpy(out, in, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(in + at);
    auto* to = reinterpret_cast<__m128i*>(out + at);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(out + at, in + at, bytes - at);
}

// Streamed stores are not ordered with what tells others that the rows are there.
void finish() { _mm_sfence(); }

#else

void copy_past_caches(std::byte* out, const std::byte* in, size_t bytes) {
  std::memcpy(out, in, bytes);
}

void finish() {}

#endif

}  // namespace

void copy_rows(std::byte* out, std::span<const std::byte* const> rows, size_t row_bytes) {
  for (const std::byte* row : rows) {
    copy_past_caches(out, row, row_bytes);
    out += row_bytes;
  }
  finish();
}

}  // namespace aegis
