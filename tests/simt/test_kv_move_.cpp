// The CUDA kernel and its launcher against the scalar oracle.
#include <array>
#include <vector>

#include "kernels/cuda/kv_move_.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"
#include "simt/random_bytes.h"

namespace aegis::kernels {

namespace scalar {
void kv_move(const KvMove& job, int64_t begin, int64_t end);
}

namespace {

using simt::DeviceBuffer;
using simt::random_bytes;

class KvMoveTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(KvMoveTest);

struct Case {
  int64_t cache_rows = 3, heads = 2, tokens = 3, slots = 7;
  int64_t key_bytes = 32, value_bytes = 32;
  std::vector<int64_t> sources{1, 2, 5, 9, 10, -1}, positions{0, 7}, rows{};
  size_t shift = 0;
  std::array<int64_t, 3> gaps{};  ///< bytes behind each vector, head and row

  KvMoveSide side(std::byte* cache, int64_t bytes) const {
    const int64_t slot = bytes + gaps[0], head = slots * slot + gaps[1];
    return {cache, heads * head + gaps[2], head, slot, bytes};
  }
  int64_t cache_bytes(int64_t bytes) const { return cache_rows * side(nullptr, bytes).row_stride; }

  void check() const {
    const auto batch = static_cast<int64_t>(positions.size());
    std::vector<std::byte> keys = random_bytes(cache_bytes(key_bytes), 1);
    std::vector<std::byte> values = random_bytes(cache_bytes(value_bytes), 2);
    DeviceBuffer<std::byte> k("keys", keys, shift), v("values", values, shift);
    DeviceBuffer<int64_t> s("sources", sources), p("positions", positions), r("rows", rows);
    cuda::launch_kv_move(
        {side(k.data(), key_bytes), side(v.data(), value_bytes), s.data(), p.data(),
         rows.empty() ? nullptr : r.data(), cache_rows, batch, heads, tokens, slots},
        nullptr);
    // The oracle takes only what the kernel does not leave out.
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t row = rows.empty() ? b : rows[b];
      if (positions[b] < 0 || positions[b] > INT64_MAX - tokens) continue;
      if (row < 0 || row >= cache_rows) continue;
      scalar::kv_move(
          {side(keys.data(), key_bytes), side(values.data(), value_bytes), &sources[b * tokens],
           &positions[b], &row, cache_rows, 1, heads, tokens, slots},
          0, heads);
    }
    ASSERT_EQ(k.values(), keys);
    ASSERT_EQ(v.values(), values);
  }
};

TEST_P(KvMoveTest, EveryWordAndVectorSize) {
  for (int64_t bytes : {1, 2, 4, 6, 8, 16, 24, 32, 256, 1040}) {
    for (size_t shift : {0, 1, 2, 4, 8}) {
      Case c;
      c.key_bytes = bytes;
      c.value_bytes = bytes == 6 ? 10 : bytes;
      c.shift = shift;
      ASSERT_NO_FATAL_FAILURE(c.check()) << bytes << " bytes, shifted by " << shift;
    }
  }
}

TEST_P(KvMoveTest, StridesThatNoWordDivides) {
  for (size_t i = 0; i < 3; ++i) {
    for (int64_t gap : {1, 8}) {
      Case c;
      c.slots = 16;  // so that one stride alone is odd
      c.gaps[i] = gap;
      ASSERT_NO_FATAL_FAILURE(c.check()) << "gap " << i << " of " << gap;
    }
  }
}

TEST_P(KvMoveTest, SizesThatNoWordDivides) {
  for (int64_t bytes : {8, 17}) {
    Case c;
    c.value_bytes = bytes;
    ASSERT_NO_FATAL_FAILURE(c.check()) << bytes << " of values";
    c.key_bytes = bytes;
    c.gaps = {32 - bytes, 0, 0};  // so that every vector is aligned
    ASSERT_NO_FATAL_FAILURE(c.check()) << bytes << " of both";
  }
}

/// Places are overwritten that were sources of tokens before: in order, or what is kept is lost.
TEST_P(KvMoveTest, PathsThatOverlapTheirSourcesAndWrapAround) {
  for (int64_t position : {0, 3, 5, 6, 1000}) {
    Case c;
    c.positions = {position, position + 2};
    c.tokens = 4;
    c.sources = {position + 1, position + 2, position + 3, position + 6,
                 position + 2, position + 4, position + 5, position + 8};
    ASSERT_NO_FATAL_FAILURE(c.check()) << position;
  }
}

TEST_P(KvMoveTest, RowsInAnyOrder) {
  Case c;
  c.rows = {2, 0};
  c.check();
}

TEST_P(KvMoveTest, NumbersThatMakeNoSenseAreLeftOut) {
  Case c;
  c.positions = {-1, 2, INT64_MIN, 1, 4, 1, INT64_MAX};
  c.rows = {0, 3, 1, -1, 2, 0, 1};
  c.sources = {1, 2, 3, 4, 5, 6, 1, 2, 3, 1, 2, 3, 5, 4, INT64_MAX, 8, INT64_MIN, 5, 1, 2, 3};
  c.check();
}

TEST_P(KvMoveTest, NothingToMoveLaunchesNothing) {
  Case c;
  c.sources = {};
  c.positions = {};
  c.check();
}

}  // namespace
}  // namespace aegis::kernels
