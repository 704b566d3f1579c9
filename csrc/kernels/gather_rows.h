// The row loop shared by the vector versions of gather_records and gather_records_scaled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

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

/// gather_records_scaled by way of `Scale`, which has
///   static void channel(values, out, count, scale, bias)  and
///   static void each(values, out, count, scales, biases), one of them for each value.
template <class Scale, class Out>
inline void gather_scaled_rows(const GatherRecordsScaled<Out>& job) {
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

}  // namespace aegis::kernels
