#include "kernels/kv_append_.h"

#include <immintrin.h>

#include "kernels/gather_rows.h"
#include "kernels/kv_append_runs.h"

namespace aegis::kernels::avx512 {
namespace {

struct Copy {
  static void row(const std::byte* from, std::byte* to, int64_t bytes) {
    if (bytes < 64) return copy_short<Copy>(from, to, bytes);
    int64_t at = 0;
    for (; at + 64 <= bytes; at += 64) move(from + at, to + at);
    if (at < bytes) move(from + bytes - 64, to + bytes - 64);
  }

 private:
  static void move(const std::byte* from, std::byte* to) {
    _mm512_storeu_si512(to, _mm512_loadu_si512(from));
  }
};

}  // namespace

void kv_append(const KvAppend& job, int64_t begin, int64_t end) {
  KvRuns<Copy>::append(job, begin, end);
}

}  // namespace aegis::kernels::avx512
