#include "core/batch_filler.h"

#include <gtest/gtest.h>

#include "core/errors.h"

namespace aegis {
namespace {

constexpr FieldType kInt64{0, 64}, kByte{1, 8};

std::string refused(const std::vector<Field>& fields, int64_t rows) {
  return message_of<std::invalid_argument>([&] { (void)lay_out(fields, rows); });
}

TEST(BatchFiller, FieldsFollowEachOtherAt64ByteSteps) {
  alignas(64) std::byte slot[1024];
  const std::vector<Field> fields{{kByte, {3, 7}}, {kInt64, {}}, {{2, 16}, {2}}};
  FieldPointers starts{};
  EXPECT_EQ(lay_out(fields, 5, slot, &starts), 128u + 64u + 64u);  // 105, 40 and 20 bytes
  EXPECT_EQ(starts[0], slot);
  EXPECT_EQ(starts[1], slot + 128);
  EXPECT_EQ(starts[2], slot + 192);
  EXPECT_EQ(starts[3], nullptr);
}

TEST(BatchFiller, LayoutHoldsEveryRowForManyShapes) {
  alignas(64) std::byte slot[1];
  for (int64_t rows : {0, 1, 2, 63, 64, 65, 1000}) {
    for (int64_t extent : {0, 1, 8, 9}) {
      const std::vector<Field> fields(kMaxFields, Field{kInt64, {extent}});
      FieldPointers starts{};
      const size_t end = lay_out(fields, rows, slot, &starts);
      const size_t bytes = static_cast<size_t>(rows * extent) * 8;
      for (size_t f = 0; f < kMaxFields; ++f) {
        const std::byte* next = f + 1 < kMaxFields ? starts[f + 1] : slot + end;
        ASSERT_EQ((starts[f] - slot) % 64, 0);
        ASSERT_GE(static_cast<size_t>(next - starts[f]), bytes);
        ASSERT_LT(static_cast<size_t>(next - starts[f]), bytes + 64);
      }
    }
  }
}

TEST(BatchFiller, NoFieldsTakeNoBytes) { EXPECT_EQ(lay_out({}, 1000), 0u); }

TEST(BatchFiller, TooManyFieldsAreRefused) {
  EXPECT_EQ(refused(std::vector<Field>(kMaxFields + 1, Field{kByte, {}}), 1),
            "fields: expected at most 16, got 17");
}

TEST(BatchFiller, BatchesOf2To62BytesAreRefused) {
  const std::vector<Field> fields{{kInt64, {int64_t{1} << 30}}};  // 2^33 bytes a row
  EXPECT_EQ(lay_out(fields, (int64_t{1} << 29) - 1), (size_t{1} << 62) - (size_t{1} << 33));
  EXPECT_EQ(
      refused(fields, int64_t{1} << 29),
      "batch_size: expected batches below 2^62 bytes, got 536870912 rows of 8589934592 bytes");
  refused(fields, INT64_MAX);
  refused(fields, -1);
  // Each field fits, and both together do not.
  refused({fields[0], fields[0]}, (int64_t{1} << 28) + 1);
  refused({{kByte, {}}, fields[0]}, (int64_t{1} << 29) - 1 + 1);
}

TEST(BatchFiller, RowsThatOverflowAreRefusedRatherThanWrapped) {
  const int64_t big = int64_t{1} << 33;
  for (int64_t rows : {1, 2, 3}) {
    refused({{kByte, {big, big}}}, rows);        // 2^66 bytes: 4 after wrapping
    refused({{kInt64, {big, big / 32}}}, rows);  // 2^64: 0 after wrapping
    refused({{kByte, {INT64_MAX, 2}}}, rows);
    refused({{kByte, {-1}}}, rows);
    refused({{kByte, {-1, -1}}}, rows);
  }
}

TEST(BatchFiller, ElementsAreWholeBytes) {
  EXPECT_EQ(refused({{{1, 4}, {8}}}, 1), "fields: expected elements of whole bytes, got 4 bits");
  EXPECT_EQ(refused({{{1, 0}, {8}}}, 1), "fields: expected elements of whole bytes, got 0 bits");
}

}  // namespace
}  // namespace aegis
