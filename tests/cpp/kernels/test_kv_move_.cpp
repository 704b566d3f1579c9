#include "kernels/kv_move_.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class KvMoveTest : public EveryIsa {};
AEGIS_EVERY_ISA(KvMoveTest);

/// Keys and values of a cache, in memory that begins anywhere.
struct Case {
  int64_t cache_rows = 3, heads = 2, slots = 7;
  int64_t key_bytes = 64, value_bytes = 64;
  std::vector<std::vector<int64_t>> sources{{1, 4}, {6, -1}};
  std::vector<int64_t> positions{0, 5}, rows{};
  int64_t gap = 0;  ///< bytes between vectors
  size_t shift = 0;

  int64_t batch() const { return static_cast<int64_t>(sources.size()); }
  int64_t tokens() const { return sources.empty() ? 0 : static_cast<int64_t>(sources[0].size()); }

  KvMoveSide side(std::vector<std::byte>& memory, int64_t bytes) const {
    const int64_t slot = bytes + gap;
    return {memory.data() + shift, heads * slots * slot, slots * slot, slot, bytes};
  }

  /// One vector at a time, all read before any is written.
  void expect(std::vector<std::byte>& memory, int64_t bytes) const {
    std::vector<std::byte> before = memory;
    const KvMoveSide to = side(memory, bytes), from = side(before, bytes);
    for (int64_t b = 0; b < batch(); ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = (rows.empty() ? b : rows[b]) * to.row_stride + h * to.head_stride;
        for (int64_t t = 0; t < tokens(); ++t) {
          if (sources[b][t] < 0) continue;
          for (int64_t i = 0; i < bytes; ++i) {
            to.cache[at + (positions[b] + t) % slots * to.slot_stride + i] =
                from.cache[at + sources[b][t] % slots * from.slot_stride + i];
          }
        }
      }
    }
  }

  void check(Isa isa) const {
    std::mt19937_64 random(7);
    std::vector<std::byte> keys(cache_rows * heads * slots * (key_bytes + gap) + shift);
    std::vector<std::byte> values(cache_rows * heads * slots * (value_bytes + gap) + shift);
    for (auto* memory : {&keys, &values}) {
      for (std::byte& byte : *memory) byte = static_cast<std::byte>(random());
    }
    std::vector<std::byte> want_keys = keys, want_values = values;
    expect(want_keys, key_bytes);
    expect(want_values, value_bytes);
    std::vector<int64_t> list;
    for (const auto& row : sources) list.insert(list.end(), row.begin(), row.end());
    const KvMove job{side(keys, key_bytes),
                     side(values, value_bytes),
                     list.data(),
                     positions.data(),
                     rows.empty() ? nullptr : rows.data(),
                     cache_rows,
                     batch(),
                     heads,
                     tokens(),
                     slots};
    const auto kernel = kv_move_kernel(isa);
    const int64_t pairs = batch() * heads, middle = pairs / 2;
    kernel(job, middle, pairs);  // as two threads would
    kernel(job, 0, middle);
    ASSERT_EQ(keys, want_keys);
    ASSERT_EQ(values, want_values);
  }
};

TEST_P(KvMoveTest, EveryVectorSize) {
  for (int64_t bytes = 1; bytes <= 80; ++bytes) {
    Case c;
    c.key_bytes = bytes;
    c.value_bytes = bytes + bytes % 5;
    c.shift = static_cast<size_t>(bytes % 8);
    c.gap = bytes % 3;
    ASSERT_NO_FATAL_FAILURE(c.check(GetParam())) << bytes;
  }
}

/// Every way to choose ascending sources out of a window of slots, at every place of the ring.
TEST_P(KvMoveTest, EveryPathAtEveryPosition) {
  for (int64_t position = 0; position <= 15; ++position) {
    for (unsigned chosen = 0; chosen < 128; ++chosen) {
      std::vector<int64_t> path;
      for (int64_t i = 0; i < 7; ++i) {
        if (chosen >> i & 1) path.push_back(position + i);
      }
      Case c;
      c.sources = {path};
      c.positions = {position};
      c.heads = 1;
      c.key_bytes = c.value_bytes = 8;
      ASSERT_NO_FATAL_FAILURE(c.check(GetParam())) << chosen << " at " << position;
    }
  }
}

TEST_P(KvMoveTest, RowsInAnyOrderAndPositionsFarBeyondTheBuffer) {
  Case c;
  c.cache_rows = 5;
  c.rows = {4, 1};
  c.positions = {INT64_MAX - 6, int64_t{1} << 40};
  c.sources = {{INT64_MAX - 5, INT64_MAX - 1}, {-1, (int64_t{1} << 40) + 6}};
  c.check(GetParam());
}

TEST_P(KvMoveTest, EmptyBatches) {
  Case c;
  c.sources = {};
  c.positions = {};
  c.check(GetParam());
}

}  // namespace
}  // namespace aegis::kernels
