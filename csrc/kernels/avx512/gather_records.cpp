#include "kernels/gather_records.h"

#include <immintrin.h>

#include "kernels/gather_rows.h"

namespace aegis::kernels::avx512 {
namespace {

struct Copy {
  static void move(const std::byte* from, std::byte* to) {
    _mm512_storeu_si512(to, _mm512_loadu_si512(from));
  }

  static void row(const std::byte* from, std::byte* to, int64_t bytes) {
    if (bytes < 64) return copy_short<Copy>(from, to, bytes);
    int64_t at = 0;
    for (; at + 64 <= bytes; at += 64) move(from + at, to + at);
    if (at < bytes) move(from + bytes - 64, to + bytes - 64);
  }

  /// Whole lines to aligned memory.
  static void stream(const std::byte* from, std::byte* to, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) {
      _mm512_stream_si512((__m512i*)(to + at), _mm512_loadu_si512(from + at));
    }
  }
};

}  // namespace

void gather_records(const GatherRecords& job) { gather_copied_rows<Copy>(job); }

}  // namespace aegis::kernels::avx512
