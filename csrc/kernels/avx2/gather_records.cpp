#include "kernels/gather_records.h"

#include <immintrin.h>

#include "kernels/gather_rows.h"

namespace aegis::kernels::avx2 {
namespace {

struct Copy {
  static void move(const std::byte* from, std::byte* to) {
    _mm256_storeu_si256((__m256i*)to, _mm256_loadu_si256((const __m256i*)from));
  }

  static void row(const std::byte* from, std::byte* to, int64_t bytes) {
    if (bytes < 32) return copy_short<Copy>(from, to, bytes);
    int64_t at = 0;
    for (; at + 32 <= bytes; at += 32) move(from + at, to + at);
    if (at < bytes) move(from + bytes - 32, to + bytes - 32);
  }

  /// Whole lines to aligned memory.
  static void stream(const std::byte* from, std::byte* to, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 32) {
      _mm256_stream_si256((__m256i*)(to + at), _mm256_loadu_si256((const __m256i*)(from + at)));
    }
  }
};

}  // namespace

void gather_records(const GatherRecords& job) { gather_copied_rows<Copy>(job); }

}  // namespace aegis::kernels::avx2
