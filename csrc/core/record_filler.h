// Batches of fixed-size records: rows gathered from arrays in memory or in mapped files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/batch_filler.h"
#include "core/token_store.h"

namespace aegis {

/// How uint8 values become floating-point ones: x * scale[c] + bias[c], where channel c is the
/// first dimension of the row. See kernels/gather_records_scaled.h for the rounding.
struct RecordScaling {
  enum class Type { float32, bfloat16 };

  Type type = Type::float32;
  std::vector<float> scale;  ///< one for each channel, finite
  std::vector<float> bias;   ///< as many, finite
};

/// One field of every record. Rows are contiguous and may lie apart; nothing needs to be aligned.
struct RecordArray {
  const std::byte* data = nullptr;  ///< the first byte of row 0
  int64_t rows = 0;
  int64_t row_stride = 0;  ///< bytes from one row to the next, at least 0
  Field stored;            ///< what a row holds
  std::optional<RecordScaling> scaling;

  std::shared_ptr<const void> owner;       ///< keeps `data` alive and in its place
  std::shared_ptr<const TokenStore> file;  ///< what maps `data`, if it lies in a file
};

/// One batch tensor for each array: (count, *row_shape) of the stored type, or of the scaling's.
/// Sample i is row i of every array.
///
/// Memory is read when a batch is filled, so changes made to it in the meantime are seen. Files are
/// checked after each batch, as by TokenFiller.
class RecordFiller : public BatchFiller {
 public:
  /// Throws std::invalid_argument where there is no array or more than kMaxFields, where arrays
  /// differ in rows, and where a scaling does not fit its array. The message names the array by its
  /// number.
  explicit RecordFiller(std::vector<RecordArray> arrays);

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override { return arrays_.front().rows; }
  void verify() const override;
  bool quick() const override { return !cold_.load(std::memory_order_relaxed); }
  void fill(const int64_t* indices, int64_t count, const FieldPointers& fields) const override;

 private:
  std::vector<RecordArray> arrays_;
  std::vector<Field> fields_;
  std::vector<const TokenStore*> files_;  // each once; the arrays own them
  int64_t row_bytes_ = 0;                 // of all arrays
  // Whether the last batch waited for a disk, as in TokenFiller.
  mutable std::atomic<bool> cold_;
};

}  // namespace aegis
