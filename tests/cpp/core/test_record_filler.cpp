#include "core/record_filler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "core/feeder.h"
#include "temp_file.h"

namespace aegis {
namespace {

constexpr FieldType kUint8{1, 8}, kInt64{0, 64}, kFloat{2, 32}, kBfloat16{4, 16};

template <class T>
RecordArray array_of(std::shared_ptr<std::vector<T>> values, FieldType type,
                     std::vector<int64_t> row_shape) {
  RecordArray array;
  array.stored = {type, std::move(row_shape)};
  array.data = reinterpret_cast<const std::byte*>(values->data());
  array.row_stride = static_cast<int64_t>(array.stored.row_bytes());
  array.rows = static_cast<int64_t>(values->size() * sizeof(T)) / array.row_stride;
  array.owner = values;
  return array;
}

/// 0, 1, 2, …
template <class T>
std::shared_ptr<std::vector<T>> counting(size_t count) {
  auto values = std::make_shared<std::vector<T>>(count);
  std::iota(values->begin(), values->end(), T{0});
  return values;
}

/// A batch, each field in memory of its own.
struct Filled {
  explicit Filled(const BatchFiller& filler, const std::vector<int64_t>& indices) {
    FieldPointers pointers{};
    const auto count = static_cast<int64_t>(indices.size());
    for (const Field& field : filler.fields()) {
      memory.emplace_back(field.row_bytes() * indices.size());
      pointers[memory.size() - 1] = memory.back().data();
    }
    filler.fill(indices.data(), count, pointers);
  }

  template <class T>
  std::vector<T> as(size_t field) const {
    std::vector<T> values(memory[field].size() / sizeof(T));
    std::memcpy(values.data(), memory[field].data(), memory[field].size());
    return values;
  }

  std::vector<std::vector<std::byte>> memory;
};

TEST(RecordFiller, GathersEveryField) {
  const RecordFiller filler(
      {array_of(counting<float>(12), kFloat, {3}), array_of(counting<int64_t>(4), kInt64, {})});
  EXPECT_EQ(filler.samples(), 4);
  EXPECT_TRUE(filler.quick());
  ASSERT_EQ(filler.fields().size(), 2u);
  EXPECT_EQ(filler.fields()[0].row_shape, std::vector<int64_t>{3});
  EXPECT_EQ(filler.fields()[1].type.bits, 64);
  const Filled batch(filler, {3, 0, 3});
  EXPECT_EQ(batch.as<float>(0), (std::vector<float>{9, 10, 11, 0, 1, 2, 9, 10, 11}));
  EXPECT_EQ(batch.as<int64_t>(1), (std::vector<int64_t>{3, 0, 3}));
}

TEST(RecordFiller, FieldsMayShareRecords) {
  // Records of a label and four pixels: nothing is aligned.
  auto bytes = counting<uint8_t>(15);
  RecordArray label = array_of(bytes, kUint8, {});
  label.rows = 3;
  label.row_stride = 5;
  RecordArray pixels = array_of(bytes, kUint8, {2, 2});
  pixels.data += 1;
  pixels.rows = 3;
  pixels.row_stride = 5;
  const Filled batch(RecordFiller({label, pixels}), {2, 1});
  EXPECT_EQ(batch.as<uint8_t>(0), (std::vector<uint8_t>{10, 5}));
  EXPECT_EQ(batch.as<uint8_t>(1), (std::vector<uint8_t>{11, 12, 13, 14, 6, 7, 8, 9}));
}

TEST(RecordFiller, ScalesByChannel) {
  RecordArray image = array_of(counting<uint8_t>(8), kUint8, {2, 2});
  image.scaling = RecordScaling{RecordScaling::Type::float32, {0.5f, 2.0f}, {1.0f, -1.0f}};
  RecordArray half = image;
  half.scaling->type = RecordScaling::Type::bfloat16;
  const RecordFiller filler({image, half});
  EXPECT_EQ(filler.fields()[0].type.code, kFloat.code);
  EXPECT_EQ(filler.fields()[1].type.code, kBfloat16.code);
  EXPECT_EQ(filler.fields()[1].row_bytes(), 8u);
  const Filled batch(filler, {1});
  EXPECT_EQ(batch.as<float>(0), (std::vector<float>{3, 3.5, 11, 13}));
  EXPECT_EQ(batch.as<uint16_t>(1), (std::vector<uint16_t>{0x4040, 0x4060, 0x4130, 0x4150}));
}

TEST(RecordFiller, SeesChangesOfTheMemory) {
  auto values = counting<int64_t>(4);
  const RecordFiller filler({array_of(values, kInt64, {})});
  values->at(2) = 99;
  EXPECT_EQ(Filled(filler, {2}).as<int64_t>(0), std::vector<int64_t>{99});
}

TEST(RecordFiller, KeepsTheOwner) {
  auto values = counting<int64_t>(4);
  const std::weak_ptr<void> watched = values;
  {
    const RecordFiller filler({array_of(std::move(values), kInt64, {})});
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

TEST(RecordFiller, FeedsARing) {
  auto filler = std::make_shared<RecordFiller>(
      std::vector<RecordArray>{array_of(counting<float>(1000 * 5), kFloat, {5})});
  auto pool = SlotPool::make(lay_out(filler->fields(), 64), 4);
  Feeder feeder(filler, pool, {.threads = 2, .depth = 4});
  feeder.follow(Schedule({.samples = 1000, .batch_size = 64}));
  int64_t row = 0;
  while (feeder.outstanding() > 0) {
    const Batch batch = feeder.take();
    const auto* values = reinterpret_cast<const float*>(batch.fields[0]);
    for (int64_t i = 0; i < batch.count; ++i, ++row) {
      ASSERT_EQ(values[5 * i + 4], static_cast<float>(5 * row + 4));
    }
  }
  EXPECT_EQ(row, 1000);
}

RecordArray array_in(const std::string& path, int64_t bytes, int64_t row_bytes) {
  auto store =
      std::make_shared<TokenStore>(std::vector<TokenFile>{{path, TokenType::u8, 0, bytes, false}});
  RecordArray array;
  array.data = static_cast<const std::byte*>(store->data());
  array.rows = bytes / row_bytes;
  array.row_stride = row_bytes;
  array.stored = {kUint8, {row_bytes}};
  array.owner = store;
  array.file = store;
  return array;
}

TEST(RecordFiller, FileCutShortIsAnError_case50) {
  const TempFolder folder;
  constexpr int64_t kBytes = 1 << 20;
  const std::string path = folder.sparse("records.bin", kBytes);
  const RecordFiller filler({array_in(path, kBytes, 4096)});
  EXPECT_FALSE(filler.quick());  // a disk may have to be read
  filler.verify();
  EXPECT_EQ(Filled(filler, {255}).as<uint8_t>(0), std::vector<uint8_t>(4096));
  std::filesystem::resize_file(path, 8192);
  const std::string message = message_of<std::runtime_error>([&] { Filled(filler, {255}); });
  EXPECT_TRUE(contains(message, path + ": expected 1048576 bytes, found 8192"));
  EXPECT_EQ(message_of<std::runtime_error>([&] { filler.verify(); }), message);
}

TEST(RecordFiller, FieldsOfAFileAreReadInPlace) {
  const TempFolder folder;
  std::vector<uint8_t> bytes(1 + 7 * 100);  // a lead-in of one byte, then records of 7
  for (size_t i = 1; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>((i - 1) / 7 + (i - 1) % 7);
  const auto store = std::make_shared<TokenStore>(
      std::vector<TokenFile>{{folder.write("records.bin", bytes), TokenType::u8, 1, 700, false}});
  const auto field = [&](int64_t at, FieldType type, std::vector<int64_t> shape) {
    RecordArray array;
    array.data = static_cast<const std::byte*>(store->data()) + at;
    array.rows = 100;
    array.row_stride = 7;
    array.stored = {type, std::move(shape)};
    array.owner = store;
    array.file = store;
    return array;
  };
  const RecordFiller filler({field(0, kUint8, {3}), field(3, kFloat, {})});
  const Filled batch(filler, {99, 0});
  EXPECT_EQ(batch.as<uint8_t>(0), (std::vector<uint8_t>{99, 100, 101, 0, 1, 2}));
  EXPECT_EQ(batch.as<uint32_t>(1), (std::vector<uint32_t>{0x69686766, 0x06050403}));
}

TEST(RecordFiller, RefusesWhatDoesNotFit) {
  const auto message = [](std::vector<RecordArray> arrays) {
    return message_of<std::invalid_argument>([&] { RecordFiller(std::move(arrays)); });
  };
  const RecordArray good = array_of(counting<uint8_t>(12), kUint8, {3, 2});
  EXPECT_EQ(message({}), "arrays: expected at least one, got none");
  EXPECT_EQ(message({good, array_of(counting<uint8_t>(12), kUint8, {3})}),
            "array 1: expected 2 rows, as in array 0, got 4");
  EXPECT_TRUE(contains(message(std::vector<RecordArray>(17, good)), "expected at most 16, got 17"));
  RecordArray backwards = good;
  backwards.row_stride = -6;
  EXPECT_TRUE(contains(message({backwards}), "array 0: expected rows in ascending order"));

  const auto scaled = [&](RecordArray array, std::vector<float> scale, std::vector<float> bias) {
    array.scaling = RecordScaling{RecordScaling::Type::float32, std::move(scale), std::move(bias)};
    return message({good, std::move(array)});
  };
  EXPECT_EQ(scaled(good, {1, 1}, {0, 0, 0}),
            "array 1: scale: expected 3 values, one for each channel, got 2");
  EXPECT_EQ(scaled(good, {1, 1, 1}, {0, 0, 0, 0}),
            "array 1: bias: expected 3 values, one for each channel, got 4");
  EXPECT_EQ(scaled(good, {1, 1, std::numeric_limits<float>::infinity()}, {0, 0, 0}),
            "array 1: scale: expected finite numbers, got inf");
  EXPECT_EQ(scaled(array_of(counting<float>(6), kFloat, {3}), {1, 1, 1}, {0, 0, 0}),
            "array 1: scale: expected values of uint8");
  RecordArray flat = array_of(counting<uint8_t>(2), kUint8, {});
  EXPECT_EQ(scaled(flat, {}, {}), "array 1: scale: expected rows with a dimension of channels");
}

}  // namespace
}  // namespace aegis
