// The CUDA kernel and its launcher against the scalar oracle.
#include <random>
#include <vector>

#include "kernels/cuda/gather_records.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"
#include "simt/random_bytes.h"

namespace aegis::kernels {

namespace scalar {
void gather_records(const GatherRecords& job);
}

namespace {

using simt::DeviceBuffer;
using simt::random_bytes;

class GatherRecordsTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(GatherRecordsTest);

std::vector<int64_t> random_rows(int64_t batch, int64_t rows) {
  std::mt19937_64 random(batch * 131 + rows);
  std::vector<int64_t> indices(batch);
  for (int64_t& index : indices) index = static_cast<int64_t>(random() % rows);
  if (batch > 0) indices.back() = rows - 1;
  return indices;
}

/// Source and result begin `shift` bytes past an aligned address.
std::vector<std::byte> on_device(const std::vector<std::byte>& source, int64_t rows, int64_t stride,
                                 int64_t row_bytes, const std::vector<int64_t>& indices,
                                 size_t shift) {
  const auto batch = static_cast<int64_t>(indices.size());
  DeviceBuffer<std::byte> from("source", source, shift);
  DeviceBuffer<int64_t> asked("indices", indices);
  DeviceBuffer<std::byte> out("out", batch * row_bytes, shift);
  cuda::launch_gather_records({from.data(), stride, row_bytes, asked.data(), batch, out.data()},
                              rows, nullptr);
  return out.values();
}

void compare(int64_t rows, int64_t stride, int64_t row_bytes, int64_t batch, size_t shift) {
  const std::vector<std::byte> source = random_bytes(rows * stride, 7);
  const std::vector<int64_t> indices = random_rows(batch, rows);
  std::vector<std::byte> want(batch * row_bytes);
  scalar::gather_records({source.data(), stride, row_bytes, indices.data(), batch, want.data()});
  ASSERT_EQ(on_device(source, rows, stride, row_bytes, indices, shift), want)
      << row_bytes << " bytes, " << batch << " rows, shifted by " << shift;
}

TEST_P(GatherRecordsTest, EveryWordAndRowSize) {
  for (int64_t row_bytes : {1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 100, 256, 300, 4096, 4100}) {
    for (size_t shift : {0, 1, 2, 4, 8}) compare(13, row_bytes, row_bytes, 9, shift);
  }
}

TEST_P(GatherRecordsTest, RowsMayLieApart) {
  compare(13, 48, 32, 9, 0);
  compare(13, 35, 32, 9, 0);
  compare(13, 48, 25, 9, 0);
}

TEST_P(GatherRecordsTest, NothingToCopyLaunchesNothing) {
  EXPECT_TRUE(on_device(random_bytes(40, 7), 10, 4, 4, {}, 0).empty());
  EXPECT_TRUE(on_device(random_bytes(40, 7), 10, 4, 0, {3, 4}, 0).empty());
}

TEST_P(GatherRecordsTest, RowsOutsideOfTheSourceBecomeZeroes) {
  const std::vector<std::byte> source = random_bytes(10 * 20, 7);
  const std::vector<int64_t> indices{3, -1, 9, 10, INT64_MAX, INT64_MIN, 0};
  const std::vector<std::byte> got = on_device(source, 10, 20, 20, indices, 0);
  for (size_t i = 0; i < indices.size(); ++i) {
    const bool inside = 0 <= indices[i] && indices[i] < 10;
    for (size_t b = 0; b < 20; ++b) {
      EXPECT_EQ(got[20 * i + b], inside ? source[20 * indices[i] + b] : std::byte{0}) << i;
    }
  }
}

// In one schedule: these take long, and only the strides of the loops are at stake.
// The loop over more than a grid is the same for the race detector as any other, and takes it a
// minute.
#ifndef __SANITIZE_THREAD__
TEST(GatherRecords, MoreRowsThanTheGridHas) { compare(7, 257, 257, cuda::kMaxGridY + 3, 1); }

TEST(GatherRecords, MoreColumnsThanTheGridHas) {
  compare(2, 1024 * 256 + 401, 1024 * 256 + 401, 2, 1);
}
#endif

}  // namespace
}  // namespace aegis::kernels
