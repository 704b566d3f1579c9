// The row loop shared by the vector versions of gather_records and gather_records_scaled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/gather_records.h"
#include "kernels/gather_records_scaled.h"

namespace aegis::kernels {

/// Calls `write(first byte of the row, its place in the batch)` for each index. Rows lie at random
/// places of an array far larger than the caches, so the first lines of later rows are prefetched
/// while this one is written; the hardware brings the rest of a long row.
///
/// `Write` is a lambda or a type in an anonymous namespace of its ISA's file; that gives every
/// instantiation internal linkage, so the linker cannot swap one ISA's copy for another's.
template <class Write>
inline void gather_rows(const std::byte* source, int64_t row_stride, int64_t row_bytes,
                        const int64_t* indices, int64_t batch, const Write& write) {
  constexpr int64_t kLine = 64;  // bytes
  // Best of many at 8, 64, 256, 3072 and 16384 bytes a row: 4 KiB in flight, in 4 to 32 rows.
  constexpr int64_t kBytesInFlight = 4096, kLeastRows = 4, kMostRows = 32, kMostBytes = 4 * kLine;
  if (row_bytes == 0) return;
  int64_t ahead = kBytesInFlight / row_bytes;
  ahead = ahead < kLeastRows ? kLeastRows : ahead > kMostRows ? kMostRows : ahead;
  const int64_t bytes = row_bytes < kMostBytes ? row_bytes : kMostBytes;
  for (int64_t row = 0; row < batch; ++row) {
    if (row + ahead < batch) {
      const std::byte* later = source + indices[row + ahead] * row_stride;
      for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(later + at);
      __builtin_prefetch(later + bytes - 1);  // the row may begin inside a line
    }
    write(source + indices[row] * row_stride, row);
  }
}

/// Copies `bytes`, fewer than 64, as two moves that may overlap. `Isa` is a type in an anonymous
/// namespace, for the reason above.
template <class Isa>
inline void copy_short(const std::byte* from, std::byte* to, int64_t bytes) {
  const auto both_ends = [&]<int64_t kBytes>(std::integral_constant<int64_t, kBytes>) {
    __builtin_memcpy(to, from, kBytes);
    __builtin_memcpy(to + bytes - kBytes, from + bytes - kBytes, kBytes);
  };
  if (bytes >= 32) return both_ends(std::integral_constant<int64_t, 32>{});
  if (bytes >= 16) return both_ends(std::integral_constant<int64_t, 16>{});
  if (bytes >= 8) return both_ends(std::integral_constant<int64_t, 8>{});
  if (bytes >= 4) return both_ends(std::integral_constant<int64_t, 4>{});
  if (bytes >= 2) return both_ends(std::integral_constant<int64_t, 2>{});
  if (bytes == 1) *to = *from;
}

/// Whether to write runs of `run_bytes`, `total_bytes` in all, past the caches. Where they hold
/// less than the batch, a line would be read before it is written and pushed out before the
/// consumer gets to it: at 50 MB with an L3 of 32 MB, writing alone took 3.0 ms instead of 7.4,
/// writing and reading 7.7 instead of 9.1; below, it is slower. Streaming stores need whole lines.
static inline bool past_caches(const void* out, int64_t run_bytes, int64_t total_bytes) {
  constexpr int64_t kLine = 64, kCaches = int64_t{32} << 20;  // bytes
  return total_bytes > kCaches && run_bytes % kLine == 0 &&
         reinterpret_cast<uintptr_t>(out) % kLine == 0;
}

/// Ends a run of streaming stores: they are in no order with the stores that announce the batch.
static inline void end_streaming() {
#if AEGIS_X86
  __builtin_ia32_sfence();
#endif
}

/// gather_records by way of `Copy`, which has row(from, to, bytes), and stream(from, to, bytes) for
/// whole lines.
template <class Copy>
inline void gather_copied_rows(const GatherRecords& job) {
  const auto gather = [&](const auto& copy) {
    gather_rows(job.source, job.row_stride, job.row_bytes, job.indices, job.batch,
                [&](const std::byte* from, int64_t row) {
                  copy(from, job.out + row * job.row_bytes, job.row_bytes);
                });
  };
  if (past_caches(job.out, job.row_bytes, job.batch * job.row_bytes)) {
    gather([](auto... row) { Copy::stream(row...); });
    end_streaming();
  } else {
    gather([](auto... row) { Copy::row(row...); });
  }
}

/// gather_records_scaled by way of `Scale`, which writes past the caches if it says kStream and has
///   static void channel(values, out, count, scale, bias)  and
///   static void each(values, out, count, scales, biases), one of them for each value.
template <class Scale, class Out>
inline void scale_rows(const GatherRecordsScaled<Out>& job) {
  const int64_t values = job.channels * job.channel_size;
  const auto write = [&](const std::byte* from, int64_t row) {
    const auto* value = reinterpret_cast<const uint8_t*>(from);
    Out* out = job.out + row * values;
    if (job.channel_size == 1) return Scale::each(value, out, values, job.scale, job.bias);
    for (int64_t c = 0; c < job.channels; ++c) {
      Scale::channel(value, out, job.channel_size, job.scale[c], job.bias[c]);
      value += job.channel_size;
      out += job.channel_size;
    }
  };
  gather_rows(reinterpret_cast<const std::byte*>(job.source), job.row_stride, values, job.indices,
              job.batch, write);
}

template <template <bool kStream> class Scale, class Out>
inline void gather_scaled_rows(const GatherRecordsScaled<Out>& job) {
  constexpr int64_t kBytes = sizeof(Out);
  const int64_t run = job.channel_size == 1 ? job.channels : job.channel_size;
  const int64_t total = job.batch * job.channels * job.channel_size;
  if (past_caches(job.out, run * kBytes, total * kBytes)) {
    scale_rows<Scale<true>>(job);
    end_streaming();
  } else {
    scale_rows<Scale<false>>(job);
  }
}

}  // namespace aegis::kernels
