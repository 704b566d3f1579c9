#include "kernels/gather_records.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class GatherRecordsTest : public EveryIsa {};
AEGIS_EVERY_ISA(GatherRecordsTest);

constexpr std::byte kGuard{0xA5};

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937_64 random(7);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<int64_t> random_rows(int64_t batch, int64_t rows) {
  std::mt19937_64 random(batch * 131 + rows);
  std::vector<int64_t> indices(batch);
  for (int64_t& index : indices) index = static_cast<int64_t>(random() % rows);
  if (batch > 0) indices.front() = rows - 1;
  if (batch > 1) indices.back() = 0;
  return indices;
}

/// Gathers into memory that begins `shift` bytes past an aligned address, and returns what is there
/// then, guards before and behind included.
std::vector<std::byte> gathered(Isa isa, const std::byte* source, int64_t stride, int64_t row_bytes,
                                const std::vector<int64_t>& indices, size_t shift) {
  std::vector<std::byte> out(shift + indices.size() * row_bytes + 64, kGuard);
  gather_records_kernel(isa)({source, stride, row_bytes, indices.data(),
                              static_cast<int64_t>(indices.size()), out.data() + shift});
  return out;
}

std::vector<std::byte> expected(const std::byte* source, int64_t stride, int64_t row_bytes,
                                const std::vector<int64_t>& indices, size_t shift) {
  std::vector<std::byte> out(shift + indices.size() * row_bytes + 64, kGuard);
  for (size_t i = 0; i < indices.size(); ++i) {
    for (int64_t b = 0; b < row_bytes; ++b) {
      out[shift + i * row_bytes + b] = source[indices[i] * stride + b];
    }
  }
  return out;
}

TEST_P(GatherRecordsTest, EveryRowSizeAtEveryAlignment) {
  constexpr int64_t kRows = 67;
  for (int64_t row_bytes = 0; row_bytes <= 300; ++row_bytes) {
    const int64_t stride = row_bytes + row_bytes % 5;
    const std::vector<std::byte> bytes = random_bytes(kRows * stride + 64);
    for (size_t shift : {0, 1, 7, 32, 63}) {
      const std::vector<int64_t> indices = random_rows(41, kRows);
      const std::byte* source = bytes.data() + (shift * 3) % 64;
      ASSERT_EQ(gathered(GetParam(), source, stride, row_bytes, indices, shift),
                expected(source, stride, row_bytes, indices, shift))
          << row_bytes << " bytes, shifted by " << shift;
    }
  }
}

TEST_P(GatherRecordsTest, EveryBatchSize) {
  const std::vector<std::byte> bytes = random_bytes(100 * 24);
  for (int64_t batch = 0; batch <= 70; ++batch) {
    const std::vector<int64_t> indices = random_rows(batch, 100);
    ASSERT_EQ(gathered(GetParam(), bytes.data(), 24, 24, indices, 0),
              expected(bytes.data(), 24, 24, indices, 0))
        << "batch " << batch;
  }
}

TEST_P(GatherRecordsTest, LongRows) {
  for (int64_t row_bytes : {4096, 12288, 100'003}) {
    const std::vector<std::byte> bytes = random_bytes(9 * row_bytes);
    const std::vector<int64_t> indices = random_rows(12, 9);
    ASSERT_EQ(gathered(GetParam(), bytes.data(), row_bytes, row_bytes, indices, 1),
              expected(bytes.data(), row_bytes, row_bytes, indices, 1))
        << row_bytes << " bytes";
  }
}

TEST_P(GatherRecordsTest, BatchesLargerThanTheCaches) {
  constexpr int64_t kBatch = 700, kRow = 64 * 1024;  // 45 MB
  const std::vector<std::byte> bytes = random_bytes(5 * kRow);
  const std::vector<int64_t> indices = random_rows(kBatch, 5);
  std::vector<std::byte> memory(kBatch * kRow + 128, kGuard);
  const size_t shift = 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
  for (const size_t begin : {shift, shift + 1}) {  // in whole lines, and not
    gather_records_kernel(GetParam())(
        {bytes.data(), kRow, kRow, indices.data(), kBatch, memory.data() + begin});
    for (int64_t i = 0; i < kBatch; ++i) {
      ASSERT_EQ(
          std::memcmp(memory.data() + begin + i * kRow, bytes.data() + indices[i] * kRow, kRow), 0)
          << i;
    }
    EXPECT_EQ(memory[begin - 1], begin == shift ? kGuard : memory[shift]);
    EXPECT_EQ(memory[begin + kBatch * kRow], kGuard);
  }
}

TEST_P(GatherRecordsTest, OneRowForAllWithoutAStride) {
  const std::vector<std::byte> bytes = random_bytes(40);
  const std::vector<int64_t> indices = random_rows(9, 1000);
  EXPECT_EQ(gathered(GetParam(), bytes.data(), 0, 40, indices, 3),
            expected(bytes.data(), 0, 40, indices, 3));
}

}  // namespace
}  // namespace aegis::kernels
