#include "core/record_filler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "kernels/gather_records.h"
#include "kernels/gather_records_scaled.h"

namespace aegis {
namespace {

using Clock = std::chrono::steady_clock;

constexpr FieldType kUint8{1, 8}, kFloat32{2, 32}, kBfloat16{4, 16};  // DLPack's codes

void check_per_channel(const std::vector<float>& values, int64_t channels, size_t at,
                       const char* name) {
  check<std::invalid_argument>(static_cast<int64_t>(values.size()) == channels, "array ", at, ": ",
                               name, ": expected ", channels, " values, one for each channel, got ",
                               values.size());
  for (float value : values) {
    check<std::invalid_argument>(std::isfinite(value), "array ", at, ": ", name,
                                 ": expected finite numbers, got ", value);
  }
}

void check_array(const RecordArray& array, int64_t rows, size_t at) {
  check<std::invalid_argument>(array.rows == rows, "array ", at, ": expected ", rows,
                               " rows, as in array 0, got ", array.rows);
  check<std::invalid_argument>(array.row_stride >= 0, "array ", at,
                               ": expected rows in ascending order, got a stride of ",
                               array.row_stride, " bytes");
  if (!array.scaling) return;
  const FieldType type = array.stored.type;
  check<std::invalid_argument>(type.code == kUint8.code && type.bits == kUint8.bits, "array ", at,
                               ": scale: expected values of uint8");
  check<std::invalid_argument>(!array.stored.row_shape.empty(), "array ", at,
                               ": scale: expected rows with a dimension of channels");
  const int64_t channels = array.stored.row_shape.front();
  check_per_channel(array.scaling->scale, channels, at, "scale");
  check_per_channel(array.scaling->bias, channels, at, "bias");
}

Field delivered(const RecordArray& array) {
  if (!array.scaling) return array.stored;
  const bool wide = array.scaling->type == RecordScaling::Type::float32;
  return {wide ? kFloat32 : kBfloat16, array.stored.row_shape};
}

template <class Out>
void gather_scaled(const RecordArray& array, const int64_t* indices, int64_t count,
                   std::byte* out) {
  const int64_t channels = array.stored.row_shape.front();
  const auto row_bytes = static_cast<int64_t>(array.stored.row_bytes());
  kernels::gather_records_scaled_kernel<Out>()(
      {reinterpret_cast<const uint8_t*>(array.data), array.row_stride, channels,
       channels == 0 ? 0 : row_bytes / channels, array.scaling->scale.data(),
       array.scaling->bias.data(), indices, count, reinterpret_cast<Out*>(out)});
}

void gather(const RecordArray& array, const int64_t* indices, int64_t count, std::byte* out) {
  if (!array.scaling) {
    kernels::gather_records_kernel()({array.data, array.row_stride,
                                      static_cast<int64_t>(array.stored.row_bytes()), indices,
                                      count, out});
  } else if (array.scaling->type == RecordScaling::Type::float32) {
    gather_scaled<float>(array, indices, count, out);
  } else {
    gather_scaled<uint16_t>(array, indices, count, out);
  }
}

/// Whether reading `count` rows of `bytes` took so long that a disk must have been read.
bool was_cold(Clock::duration taken, int64_t count, int64_t bytes) {
  // A row in memory costs its latency, and its bytes at 1 GB/s or more.
  return taken > count * (std::chrono::microseconds(10) + std::chrono::nanoseconds(bytes));
}

void announce(const RecordArray& array, const int64_t* indices, int64_t count) {
  const int64_t begin = array.data - static_cast<const std::byte*>(array.file->data());
  const auto bytes = static_cast<int64_t>(array.stored.row_bytes());
  for (int64_t i = 0; i < count; ++i) {
    array.file->will_read(begin + indices[i] * array.row_stride, bytes);
  }
}

}  // namespace

RecordFiller::RecordFiller(std::vector<RecordArray> arrays) : arrays_(std::move(arrays)) {
  check<std::invalid_argument>(!arrays_.empty(), "arrays: expected at least one, got none");
  for (size_t i = 0; i < arrays_.size(); ++i) {
    check_array(arrays_[i], arrays_.front().rows, i);
    fields_.push_back(delivered(arrays_[i]));
    row_bytes_ += static_cast<int64_t>(arrays_[i].stored.row_bytes());
    const TokenStore* file = arrays_[i].file.get();
    if (file != nullptr && std::find(files_.begin(), files_.end(), file) == files_.end()) {
      files_.push_back(file);
    }
  }
  (void)lay_out(fields_, 0);  // throws where there are too many
  cold_.store(!files_.empty(), std::memory_order_relaxed);
}

void RecordFiller::verify() const {
  for (const TokenStore* file : files_) file->verify_all();
}

void RecordFiller::fill(const int64_t* indices, int64_t count, const FieldPointers& fields) const {
  if (cold_.load(std::memory_order_relaxed)) {
    for (const RecordArray& array : arrays_) {
      if (array.file != nullptr) announce(array, indices, count);
    }
  }
  const Clock::time_point start = Clock::now();
  for (size_t i = 0; i < arrays_.size(); ++i) {
    gather(arrays_[i], indices, count, fields[i]);
  }
  if (files_.empty()) return;
  cold_.store(was_cold(Clock::now() - start, count, row_bytes_), std::memory_order_relaxed);
  for (const TokenStore* file : files_) {
    for (size_t segment = 0; segment < file->segments().size(); ++segment) file->verify(segment);
  }
}

}  // namespace aegis
