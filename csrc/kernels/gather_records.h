// gather_records: copy rows of a record array, chosen by number, one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cpu.h"

namespace aegis::kernels {

/// What a kernel reads and writes. Bytes: the type of the values does not matter, and nothing needs
/// to be aligned. All pointers are in one memory (host or one GPU); nothing is owned, and `out`
/// overlaps nothing.
struct GatherRecords {
  const std::byte* source;  ///< the first byte of row 0
  int64_t row_stride;       ///< bytes from one row to the next, at least 0
  int64_t row_bytes;        ///< bytes of a row, at least 0
  const int64_t* indices;   ///< `batch` row numbers, already checked
  int64_t batch;
  std::byte* out;  ///< (batch, row_bytes), row-major
};

using GatherRecordsKernel = void (*)(const GatherRecords&);

/// The fastest kernel at or below `isa`. Never null; costs a table look-up.
GatherRecordsKernel gather_records_kernel(Isa isa = active_isa());

}  // namespace aegis::kernels
