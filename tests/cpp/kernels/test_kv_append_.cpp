#include "kernels/kv_append_.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class KvAppendTest : public EveryIsa {};
AEGIS_EVERY_ISA(KvAppendTest);

constexpr std::byte kGuard{0xA5};

/// Keys and values of a cache and of new tokens, in memory that begins anywhere.
struct Case {
  int64_t cache_rows = 3, batch = 2, heads = 2, tokens = 1, slots = 7;
  int64_t key_bytes = 64, value_bytes = 64;
  std::vector<int64_t> positions{0, 0}, rows{};
  std::vector<int64_t> blocks{};  ///< of each row; then the cache's rows are pages
  bool transposed = false;  ///< new tokens lie (batch, tokens, heads), as Hugging Face passes them
  int64_t gap = 0;          ///< bytes between vectors of the cache
  size_t shift = 0;

  std::vector<std::byte> keys, values, new_keys, new_values;

  void allocate() {
    std::mt19937_64 random(7);
    const auto fill = [&](std::vector<std::byte>& memory, int64_t bytes, bool guard) {
      memory.assign(static_cast<size_t>(bytes) + shift + 64, kGuard);
      if (guard) return;
      for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
    };
    fill(keys, cache_rows * heads * slots * (key_bytes + gap), true);
    fill(values, cache_rows * heads * slots * (value_bytes + gap), true);
    fill(new_keys, batch * heads * tokens * key_bytes, false);
    fill(new_values, batch * heads * tokens * value_bytes, false);
  }

  KvSide side(std::vector<std::byte>& cache, const std::vector<std::byte>& fresh,
              int64_t bytes) const {
    const int64_t slot = bytes + gap;
    return {cache.data() + shift,
            heads * slots * slot,
            slots * slot,
            slot,
            fresh.data() + shift,
            heads * tokens * bytes,
            transposed ? bytes : tokens * bytes,
            transposed ? heads * bytes : bytes,
            bytes};
  }

  KvAppend job() {
    return {side(keys, new_keys, key_bytes),
            side(values, new_values, value_bytes),
            positions.data(),
            rows.empty() ? nullptr : rows.data(),
            cache_rows,
            batch,
            heads,
            tokens,
            slots,
            blocks.empty() ? nullptr : blocks.data(),
            row_blocks(),
            row_blocks(),
            cache_rows};
  }
  int64_t row_blocks() const { return std::ssize(blocks) / 2; }

  /// One byte at a time, straight from the contract.
  void expect(std::vector<std::byte>& cache, const std::vector<std::byte>& fresh, int64_t bytes) {
    const KvSide s = side(cache, fresh, bytes);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < tokens; ++t) {
          const int64_t position = positions[b] + t, slot = position % slots;
          int64_t row = rows.empty() ? b : rows[b];
          if (!blocks.empty()) row = blocks[row * row_blocks() + position / slots];
          for (int64_t i = 0; i < bytes; ++i) {
            s.cache[row * s.row_stride + h * s.head_stride + slot * s.slot_stride + i] =
                s.fresh[b * s.fresh_batch_stride + h * s.fresh_head_stride +
                        t * s.fresh_token_stride + i];
          }
        }
      }
    }
  }

  void check(Isa isa) {
    allocate();
    std::vector<std::byte> want_keys = keys, want_values = values;
    expect(want_keys, new_keys, key_bytes);
    expect(want_values, new_values, value_bytes);
    const KvAppend whole = job();
    const auto kernel = kv_append_kernel(isa);
    const int64_t pairs = batch * heads, middle = pairs / 2;
    kernel(whole, middle, pairs);  // as two threads would
    kernel(whole, 0, middle);
    ASSERT_EQ(keys, want_keys);
    ASSERT_EQ(values, want_values);
  }
};

TEST_P(KvAppendTest, EveryVectorSizeAtEveryAlignment) {
  for (int64_t bytes = 1; bytes <= 200; ++bytes) {
    for (size_t shift : {0, 1, 7, 32}) {
      for (int64_t gap : {0, 3}) {
        Case c;
        c.key_bytes = bytes;
        c.value_bytes = bytes + bytes % 5;
        c.shift = shift;
        c.gap = gap;
        c.positions = {5, 0};
        ASSERT_NO_FATAL_FAILURE(c.check(GetParam())) << bytes << " " << shift << " " << gap;
      }
    }
  }
}

TEST_P(KvAppendTest, EveryPositionAndCountOfTokens) {
  for (int64_t tokens = 0; tokens <= 20; ++tokens) {
    for (int64_t position = 0; position <= 16; ++position) {
      for (bool transposed : {false, true}) {
        Case c;
        c.tokens = tokens;
        c.transposed = transposed;
        c.positions = {position, 1000 - position};
        ASSERT_NO_FATAL_FAILURE(c.check(GetParam())) << tokens << " at " << position;
      }
    }
  }
}

TEST_P(KvAppendTest, RowsInAnyOrder) {
  Case c;
  c.cache_rows = 5;
  c.rows = {4, 1};
  c.tokens = 3;
  c.positions = {6, 2};
  c.check(GetParam());
}

TEST_P(KvAppendTest, OnPages) {
  for (int64_t tokens = 0; tokens <= 22; ++tokens) {
    for (int64_t position = 0; position + tokens <= 28; ++position) {
      Case c;
      c.cache_rows = 10;
      c.blocks = {7, 2, 9, 0, 1, 5, 3, 8};
      if (tokens % 2) c.rows = {1, 0};
      c.tokens = tokens;
      c.positions = {position, 28 - tokens - position};
      c.transposed = position % 2;
      c.gap = tokens % 3;
      ASSERT_NO_FATAL_FAILURE(c.check(GetParam())) << tokens << " at " << position;
    }
  }
}

TEST_P(KvAppendTest, PositionsFarBeyondTheBuffer) {
  Case c;
  c.tokens = 5;
  c.positions = {INT64_MAX - 5, (int64_t{1} << 40) + 3};
  c.check(GetParam());
}

TEST_P(KvAppendTest, OneHeadOneSlotAndEmptyBatches) {
  Case c;
  c.heads = 1;
  c.slots = 1;
  c.tokens = 4;
  c.check(GetParam());
  Case empty;
  empty.batch = 0;
  empty.check(GetParam());
}

}  // namespace
}  // namespace aegis::kernels
