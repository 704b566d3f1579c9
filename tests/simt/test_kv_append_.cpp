// The CUDA kernel and its launcher against the scalar oracle.
#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cuda/kv_append_.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"
#include "simt/random_bytes.h"

namespace aegis::kernels {

namespace scalar {
void kv_append(const KvAppend& job, int64_t begin, int64_t end);
}

namespace {

using simt::DeviceBuffer;
using simt::random_bytes;

class KvAppendTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(KvAppendTest);

struct Case {
  int64_t cache_rows = 3, batch = 2, heads = 2, tokens = 1, slots = 5;
  int64_t key_bytes = 32, value_bytes = 32;
  std::vector<int64_t> positions{3, 0}, rows{};
  std::vector<int64_t> blocks{};  ///< (2, n): the cache's rows are pages
  int64_t unused_blocks = 0;      ///< the last of each row of them
  size_t shift = 0;
  /// Bytes behind each vector, head and row of the cache, and each vector, token and row of what is
  /// new.
  std::array<int64_t, 6> gaps{};

  int64_t block_stride() const { return std::ssize(blocks) / 2; }
  int64_t row_blocks() const { return block_stride() - unused_blocks; }
  int64_t rows_there() const { return blocks.empty() ? cache_rows : 2; }

  /// New tokens lie (batch, tokens, heads), as Hugging Face passes them.
  KvSide side(std::byte* cache, const std::byte* fresh, int64_t bytes) const {
    KvSide side{cache, 0, 0, bytes + gaps[0], fresh, 0, bytes + gaps[3], 0, bytes};
    side.head_stride = slots * side.slot_stride + gaps[1];
    side.row_stride = heads * side.head_stride + gaps[2];
    side.fresh_token_stride = heads * side.fresh_head_stride + gaps[4];
    side.fresh_batch_stride = tokens * side.fresh_token_stride + gaps[5];
    return side;
  }
  int64_t cache_bytes(int64_t bytes) const {
    return cache_rows * side(nullptr, nullptr, bytes).row_stride;
  }
  int64_t fresh_bytes(int64_t bytes) const {
    return batch * side(nullptr, nullptr, bytes).fresh_batch_stride;
  }

  /// Token by token, since the oracle takes no pages that are not there.
  void append_to_pages(const KvSide& side, int64_t b, int64_t row) const {
    for (int64_t t = 0; t < tokens && t <= INT64_MAX - positions[b]; ++t) {
      const int64_t block = (positions[b] + t) / slots;
      const int64_t page = block < row_blocks() ? blocks[row * block_stride() + block] : -1;
      if (page < 0 || page >= cache_rows) continue;
      for (int64_t h = 0; h < heads; ++h) {
        std::copy_n(side.fresh + b * side.fresh_batch_stride + h * side.fresh_head_stride +
                        t * side.fresh_token_stride,
                    side.bytes,
                    side.cache + page * side.row_stride + h * side.head_stride +
                        (positions[b] + t) % slots * side.slot_stride);
      }
    }
  }

  void check() const {
    std::vector<std::byte> keys = random_bytes(cache_bytes(key_bytes), 1);
    std::vector<std::byte> values = random_bytes(cache_bytes(value_bytes), 2);
    const std::vector<std::byte> new_keys = random_bytes(fresh_bytes(key_bytes), 3);
    const std::vector<std::byte> new_values = random_bytes(fresh_bytes(value_bytes), 4);

    DeviceBuffer<std::byte> k("keys", keys, shift), v("values", values, shift);
    DeviceBuffer<std::byte> nk("new_keys", new_keys, shift), nv("new_values", new_values, shift);
    DeviceBuffer<int64_t> p("positions", positions), r("rows", rows), pages("blocks", blocks);
    cuda::launch_kv_append(
        {side(k.data(), nk.data(), key_bytes), side(v.data(), nv.data(), value_bytes), p.data(),
         rows.empty() ? nullptr : r.data(), rows_there(), batch, heads, tokens, slots,
         blocks.empty() ? nullptr : pages.data(), block_stride(), row_blocks(), cache_rows},
        nullptr);

    // The oracle takes only what the kernel does not leave out.
    KvSide key_side = side(keys.data(), new_keys.data(), key_bytes);
    KvSide value_side = side(values.data(), new_values.data(), value_bytes);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t row = rows.empty() ? b : rows[b];
      if (positions[b] < 0 || row < 0 || row >= rows_there()) continue;
      if (!blocks.empty()) {
        append_to_pages(key_side, b, row);
        append_to_pages(value_side, b, row);
        continue;
      }
      KvAppend one{key_side, value_side, &positions[b], &row, cache_rows, 1, heads, tokens, slots};
      one.keys.fresh += b * key_side.fresh_batch_stride;
      one.values.fresh += b * value_side.fresh_batch_stride;
      scalar::kv_append(one, 0, heads);
    }
    ASSERT_EQ(k.values(), keys);
    ASSERT_EQ(v.values(), values);
  }
};

TEST_P(KvAppendTest, EveryWordAndVectorSize) {
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

TEST_P(KvAppendTest, StridesThatNoWordDivides) {
  for (size_t i = 0; i < 6; ++i) {
    for (int64_t gap : {1, 8}) {
      Case c;
      c.tokens = 2;
      c.slots = c.heads = 16;  // so that one stride alone is odd
      c.gaps[i] = gap;
      ASSERT_NO_FATAL_FAILURE(c.check()) << "gap " << i << " of " << gap;
    }
  }
}

TEST_P(KvAppendTest, SizesThatNoWordDivides) {
  for (int64_t bytes : {8, 17}) {
    Case c;
    c.value_bytes = bytes;
    ASSERT_NO_FATAL_FAILURE(c.check()) << bytes << " of values";
    c.key_bytes = bytes;
    c.gaps = {32 - bytes, 0, 0, 32 - bytes, 0, 0};  // so that every vector is aligned
    ASSERT_NO_FATAL_FAILURE(c.check()) << bytes << " of both";
  }
}

TEST_P(KvAppendTest, WrapsAroundAndKeepsTheLastTokens) {
  for (int64_t tokens : {0, 1, 3, 5, 6, 13}) {
    for (int64_t position : {0, 3, 4, 1000}) {
      Case c;
      c.tokens = tokens;
      c.positions = {position, position + 2};
      ASSERT_NO_FATAL_FAILURE(c.check()) << tokens << " tokens at " << position;
    }
  }
}

TEST_P(KvAppendTest, RowsInAnyOrder) {
  Case c;
  c.rows = {2, 0};
  c.tokens = 2;
  c.check();
}

TEST_P(KvAppendTest, NegativePositionsAndRowsThatAreNotThereAreLeftOut) {
  Case c;
  c.batch = 5;
  c.positions = {-1, 2, INT64_MIN, 1, 4};
  c.rows = {0, 3, 1, -1, 2};
  c.tokens = 2;
  c.check();
}

TEST_P(KvAppendTest, PagesAndNoneThatAreNotThere) {
  for (int64_t position : {int64_t{0}, int64_t{4}, int64_t{9}, INT64_MAX - 3}) {
    Case c;
    c.cache_rows = 6;
    c.blocks = {5, 0, 6, 1, 2, -1, 3, 1};
    c.unused_blocks = 1;
    c.rows = {1, 0};
    c.tokens = 7;
    c.positions = {position, position < 14 ? 14 - position : 0};
    ASSERT_NO_FATAL_FAILURE(c.check()) << position;
  }
}

TEST_P(KvAppendTest, NothingToWriteLaunchesNothing) {
  Case c;
  c.batch = 0;
  c.positions = {};
  c.check();
}

// In one schedule: it takes long, and only the strides of the loops are at stake.
// The loop over more than a grid is the same for the race detector as any other, and takes it a
// minute.
#ifndef __SANITIZE_THREAD__
TEST(KvAppend, MoreVectorsThanTheGridHas) {
  Case c;
  c.cache_rows = c.batch = 1;
  c.heads = 1;
  c.positions = {7};
  c.key_bytes = c.value_bytes = 257;
  c.tokens = c.slots = cuda::kMaxGridY + 3;
  c.check();
}
#endif

}  // namespace
}  // namespace aegis::kernels
