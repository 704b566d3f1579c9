// What a feeder needs from a data set: the shape of a batch, and a way to write one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aegis {

/// The element types a batch's tensors may have, as DLPack codes them.
struct FieldType {
  uint8_t code;  ///< 0 signed integer, 1 unsigned integer, 2 float, 4 bfloat16, 5 complex, 6 bool
  uint8_t bits;
};

/// One tensor of a batch: (count, *row_shape).
struct Field {
  FieldType type;
  std::vector<int64_t> row_shape;

  /// SIZE_MAX where an extent is negative or the product does not fit.
  size_t row_bytes() const {
    size_t bytes = type.bits / 8;
    for (int64_t extent : row_shape) {
      if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(extent), &bytes))
        return SIZE_MAX;
    }
    return bytes;
  }
};

/// The most tensors a batch may have.
inline constexpr size_t kMaxFields = 16;

/// The number of a sample that there is not: a row of padding.
inline constexpr int64_t kPadding = INT64_MIN;

/// Where each field's tensor starts.
using FieldPointers = std::array<std::byte*, kMaxFields>;

/// Writes the samples of a batch. Const members are called from several filler threads at once.
class BatchFiller {
 public:
  virtual ~BatchFiller() = default;

  /// The tensors of a batch, in the order they are handed out. Fixed for the filler's life.
  virtual const std::vector<Field>& fields() const = 0;

  /// Samples in the data set.
  virtual int64_t samples() const = 0;

  /// Looks whether the data is still what it was, at the start of an epoch. Throws
  /// std::runtime_error naming what has changed.
  virtual void verify() const {}

  /// Whether fill() takes microseconds now, not waiting for a disk or for anybody. A consumer that
  /// finds its batch not begun then fills it itself, which is sooner than waking a thread.
  virtual bool quick() const { return false; }

  /// Of a field that is one array over a whole batch and has no row for each sample: how many
  /// elements of it, in a batch of `count` rows that fill() has written to `fields`, are meant. -1
  /// of any other field.
  virtual int64_t elements(size_t field, int64_t count, const FieldPointers& fields) const {
    (void)field, (void)count, (void)fields;
    return -1;
  }

  /// Whether fill() takes kPadding for a sample.
  virtual bool pads() const { return false; }

  /// Writes samples `indices[0 .. count-1]`, each in [0, samples()), to the start of each field's
  /// memory, which is 64-byte aligned. Throws where the data cannot be read; what was written then
  /// is not handed out.
  virtual void fill(const int64_t* indices, int64_t count, const FieldPointers& fields) const = 0;
};

/// Bytes a batch of `rows` rows takes in a slot, every field 64-byte aligned. `starts`, if not
/// null, receives where each field begins when the slot begins at `slot`. Throws
/// std::invalid_argument for more than kMaxFields fields, for elements that are not whole bytes and
/// for batches of 2^62 bytes or more. Allocates nothing.
size_t lay_out(const std::vector<Field>& fields, int64_t rows, std::byte* slot = nullptr,
               FieldPointers* starts = nullptr);

}  // namespace aegis
