#include "kernels/kv_append_.h"

#include <immintrin.h>

#include "kernels/gather_rows.h"
#include "kernels/kv_append_runs.h"

namespace aegis::kernels::avx2 {
namespace {

struct Copy {
  static void row(const std::byte* from, std::byte* to, int64_t bytes) {
    if (bytes < 32) return copy_short<Copy>(from, to, bytes);
    int64_t at = 0;
    for (; at + 32 <= bytes; at += 32) move(from + at, to + at);
    if (at < bytes) move(from + bytes - 32, to + bytes - 32);
  }

 private:
  static void move(const std::byte* from, std::byte* to) {
    _mm256_storeu_si256((__m256i*)to, _mm256_loadu_si256((const __m256i*)from));
  }
};

}  // namespace

void kv_append(const KvAppend& job, int64_t begin, int64_t end) {
  KvRuns<Copy>::append(job, begin, end);
}

}  // namespace aegis::kernels::avx2
