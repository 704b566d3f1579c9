// float8_linear: products of E4M3 rows, each group of which has a scale.
#pragma once

#include <cstdint>

#include "core/cpu.h"
#include "kernels/float8_quantize.h"

namespace aegis::kernels {

/// Rows of x that a CPU kernel takes at once; as many of float32 stay in a second-level cache while
/// all of the weights go by.
constexpr int64_t kFloat8Rows = 64;

/// The type of bias and result.
enum class Float8Result : uint8_t { float32, float16, bfloat16 };

/// What a kernel reads and writes:
///   out[r, c] = Σ over groups g of x_scale[r, g] · weight_scale[c, g] · Σ in g of x · weight
///               + bias[c]
/// Pointers are in one memory (host or one GPU), aligned to their elements and no further.
///
/// A product of two E4M3 values is exact in float32. Sums are float32 in two levels, so that none
/// is long: up to 128 products one after another, and these sums, scaled, one after another. Where
/// e = Σ|x·w| + |bias|, with scales, every version keeps
///   |out − exact| ≤ (160 + k/128) · 2⁻²⁴ · e + 2⁻¹⁴⁰, then rounded to the type of the result.
/// A NaN makes NaN of its row or column. Parts of a sum, or products of scales, that exceed float32
/// make it infinite or NaN.
struct Float8Linear {
  const void* x;              ///< (rows, k), spread (below); rows lie float8_row_bytes(k) apart
  const float* x_scale;       ///< (rows, groups)
  const uint8_t* weight;      ///< (n, k): rows of k adjacent E4M3 values
  int64_t weight_stride;      ///< from one row of `weight` to the next
  const float* weight_scale;  ///< (n, groups)
  const void* bias;           ///< n, or null
  void* out;                  ///< (rows, n), row-major; shares no memory with the others
  Float8Result type;          ///< of bias and out
  int64_t rows;               ///< 0 to kFloat8Rows
  int64_t k;
  int64_t n;
  int64_t group;   ///< kFloat8Block, or at least k
  int64_t groups;  ///< scales of a row
};

/// Bytes of a row of x in a workspace. One line more than needed: rows a power of two apart would
/// share the ways of the first-level cache.
constexpr int64_t float8_row_bytes(int64_t k) { return ((k + 63) / 64 * 64 + 16) * 4; }

struct Float8LinearKernel {
  /// Writes k E4M3 values to `row`, which is 64-byte aligned, in the form that `multiply` reads.
  void (*spread)(const uint8_t* values, int64_t k, void* row);
  /// Fills columns [begin, end) of `out`. Threads may share a job, each with columns of its own.
  void (*multiply)(const Float8Linear&, int64_t begin, int64_t end);
};

/// The fastest kernel at or below `isa`; costs a table look-up.
Float8LinearKernel float8_linear_kernel(Isa isa = active_isa());

}  // namespace aegis::kernels
