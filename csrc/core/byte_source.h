// Where a parser reads from: a file, or memory in the tests and fuzzers.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "core/descriptor.h"

namespace aegis {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and are read in place");

/// Bytes that can be read anywhere, any number of times. One thread at a time.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// What messages begin with.
  virtual const std::string& path() const = 0;
  virtual int64_t size() const = 0;

  /// Fills `into` with the bytes from `offset` on. Throws std::invalid_argument, with the path,
  /// where that is not within [0, size()), and std::runtime_error where they cannot be read.
  void read(int64_t offset, std::span<std::byte> into) const;

  /// Reads a `T` at `offset`.
  template <class T>
  T read(int64_t offset) const {
    T value;
    read(offset, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  /// Throws std::invalid_argument, with the path, unless `count` items of `item` bytes lie within
  /// the source from `offset` on. Any numbers may be given, also those of a header.
  void check_range(int64_t offset, uint64_t count, size_t item) const;

 protected:
  virtual void read_checked(int64_t offset, std::span<std::byte> into) const = 0;
};

/// A file, opened once.
class FileSource : public ByteSource {
 public:
  /// Throws std::runtime_error, with the path, where it cannot be opened or is no regular file.
  explicit FileSource(std::string path);

  const std::string& path() const override { return path_; }
  int64_t size() const override { return size_; }

 protected:
  void read_checked(int64_t offset, std::span<std::byte> into) const override;

 private:
  std::string path_;
  Descriptor fd_;
  int64_t size_ = 0;
};

/// Memory of the caller's, which must outlive it.
class MemorySource : public ByteSource {
 public:
  MemorySource(std::string path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  const std::string& path() const override { return path_; }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }

 protected:
  void read_checked(int64_t offset, std::span<std::byte> into) const override {
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

/// Items of type T that lie one behind the other in a source, read in pieces as they are asked for:
/// quick where they are asked for in ascending order.
template <class T>
class Column {
 public:
  /// `count` items from byte `offset` on. Throws as ByteSource::check_range(). `source` must
  /// outlive the column.
  Column(const ByteSource& source, int64_t offset, uint64_t count)
      : source_(source), offset_(offset), count_(static_cast<int64_t>(count)) {
    source.check_range(offset, count, sizeof(T));
  }

  int64_t size() const { return count_; }

  /// Item `index`, which must be in [0, size()). Throws std::runtime_error where it cannot be read.
  T operator[](int64_t index) {
    if (index < begin_ || index >= end_) fetch(index);
    return piece_[static_cast<size_t>(index - begin_)];
  }

 private:
  void fetch(int64_t index) {
    begin_ = end_ = index;
    const auto items = std::min<int64_t>(count_ - index, std::ssize(piece_));
    source_.read(offset_ + index * static_cast<int64_t>(sizeof(T)),
                 std::as_writable_bytes(std::span(piece_.data(), static_cast<size_t>(items))));
    end_ = index + items;
  }

  const ByteSource& source_;
  const int64_t offset_, count_;
  int64_t begin_ = 0, end_ = 0;  // of what piece_ holds
  std::array<T, (16 << 10) / sizeof(T)> piece_;
};

}  // namespace aegis
