// Copying more than the caches hold.
#pragma once

#include <cstddef>
#include <span>

namespace aegis {

/// Writes `rows`, each of `row_bytes`, one behind the other to `out`, which overlaps none of them.
///
/// The writes go past the caches: a plain store first reads the line that it is about to replace,
/// which for memory that has left the caches costs half as much again. For batches of many
/// megabytes in slots used in turn: below that, a reader would find the data in the cache. Measured
/// on slots of 9.6 to 38.5 MB: 1.3 to 1.9 times as fast as memcpy.
void copy_rows(std::byte* out, std::span<const std::byte* const> rows, size_t row_bytes);

}  // namespace aegis
