// The CUDA kernels and their launcher against the scalar oracle.
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/decode_attention.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::kernels {

namespace scalar {
template <class Element>
void attend(const DecodeAttention<Element>&, const AttentionPiece&, float*);
template <class Element>
void combine(const DecodeAttention<Element>&, int64_t, int64_t, const float*, int64_t);
}  // namespace scalar

namespace {

using simt::DeviceBuffer;

class DecodeAttentionTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(DecodeAttentionTest);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int64_t group = 2, key_heads = 2, size = 16, slots = 16;
  std::vector<int64_t> spans{0, 37, 5, 30};  // of two batch rows
  int64_t window = 0;
  float scale = 0.3f, softcap = 0;
  bool paged = true;
  std::vector<int64_t> rows{};
  size_t shift = 0;
  std::vector<int64_t> blocks{7, 2, 9, 4, 1, 0};  // (2, 3), some pages unused
  int64_t unused_blocks = 0;                      // the last of each row of them
  /// Elements behind each vector, head and page; behind each head and row of the query.
  std::array<int64_t, 3> key_gaps{}, value_gaps{};
  std::array<int64_t, 2> query_gaps{};

  int64_t batch() const { return static_cast<int64_t>(spans.size()) / 2; }
  int64_t cache_rows() const { return 2; }
  int64_t block_stride() const { return std::ssize(blocks) / cache_rows(); }
  int64_t row_blocks() const { return block_stride() - unused_blocks; }
  int64_t pages() const { return paged ? 10 : cache_rows(); }

  template <class Element>
  void check(double tolerance) {
    std::mt19937 random(static_cast<unsigned>(size + 31 * group));
    std::normal_distribution<float> normal;
    const auto draw = [&](int64_t count) {
      std::vector<Element> made(static_cast<size_t>(count));
      for (Element& e : made) e = from_float<Element>(normal(random));
      return made;
    };
    const int64_t heads = group * key_heads;
    const int64_t query_head = size + query_gaps[0], query_row = heads * query_head + query_gaps[1];
    const auto strides = [&](const std::array<int64_t, 3>& gaps) {
      const int64_t slot = size + gaps[0], head = slots * slot + gaps[1];
      return std::array<int64_t, 3>{slot, head, key_heads * head + gaps[2]};
    };
    const auto [key_slot, key_head, key_row] = strides(key_gaps);
    const auto [value_slot, value_head, value_row] = strides(value_gaps);
    const std::vector<Element> query = draw(batch() * query_row);
    const std::vector<Element> keys = draw(pages() * key_row);
    const std::vector<Element> values = draw(pages() * value_row);
    std::vector<Element> want(static_cast<size_t>(batch() * heads * size));

    DeviceBuffer<Element> q("query", query, shift), k("keys", keys, shift);
    DeviceBuffer<Element> v("values", values, shift), out("out", want.size(), shift);
    DeviceBuffer<int64_t> s("spans", spans), r("rows", rows), b("blocks", blocks);
    const auto job = [&](const Element* qs, const Element* ks, const Element* vs, Element* to,
                         const int64_t* table) {
      return DecodeAttention<Element>{qs,
                                      query_row,
                                      query_head,
                                      ks,
                                      key_row,
                                      key_head,
                                      key_slot,
                                      vs,
                                      value_row,
                                      value_head,
                                      value_slot,
                                      to,
                                      group,
                                      key_heads,
                                      slots,
                                      size,
                                      scale,
                                      softcap,
                                      paged ? table : nullptr,
                                      block_stride()};
    };
    cuda::DecodeAttentionOnDevice<Element> on_device{
        job(q.data(), k.data(), v.data(), out.data(), b.data()),
        s.data(),
        2,
        rows.empty() ? nullptr : r.data(),
        batch(),
        window,
        cache_rows(),
        paged ? row_blocks() : 0,
        pages(),
        nullptr};
    DeviceBuffer<float> parts("parts", static_cast<size_t>(on_device.part_floats()));
    on_device.parts = parts.data();
    cuda::launch_decode_attention(on_device, nullptr);

    const auto host = job(query.data(), keys.data(), values.data(), want.data(), blocks.data());
    std::vector<float> part(static_cast<size_t>(group * part_size(size)));
    const std::vector<Element> got = out.values();
    for (int64_t i = 0; i < batch(); ++i) {
      const int64_t end = spans[2 * i + 1], row = rows.empty() ? i : rows[i];
      const int64_t begin = window ? std::max(spans[2 * i], end - window) : spans[2 * i];
      bool there = spans[2 * i] >= 0 && begin <= end && row >= 0 && row < cache_rows();
      there = there && (paged ? end <= row_blocks() * slots : end - begin <= slots);
      for (int64_t p = begin; there && paged && p < end; ++p) {
        const int64_t page = blocks[row * block_stride() + p / slots];
        there = page >= 0 && page < pages();
      }
      for (int64_t h = 0; there && h < key_heads; ++h) {
        if (begin < end) scalar::attend(host, {i, row, h, begin, end}, part.data());
        scalar::combine(host, i, h, part.data(), begin < end);
      }
      for (int64_t e = i * heads * size; e < (i + 1) * heads * size; ++e) {
        if (there) {
          ASSERT_NEAR(to_float(got[e]), to_float(want[e]), tolerance) << "element " << e;
        } else {
          ASSERT_TRUE(std::isnan(to_float(got[e]))) << "element " << e;
        }
      }
    }
  }
};

TEST_P(DecodeAttentionTest, EveryHeadSizeAndGroup) {
  for (int64_t size : {1, 3, 16, 40, 64, 129}) {
    for (int64_t group : {1, 2, 3, 9}) {
      Case c;
      c.size = size;
      c.group = group;
      c.softcap = group == 2 ? 1.5f : 0;
      c.shift = size == 40 ? 1 : 0;
      ASSERT_NO_FATAL_FAILURE(c.check<float>(1e-5)) << size << " by " << group;
    }
  }
}

TEST_P(DecodeAttentionTest, EveryStrideAndAlignment) {
  for (size_t i = 0; i < 3; ++i) {
    for (int64_t gap : {1, 2, 4}) {
      Case c;
      c.key_gaps[i] = gap;
      ASSERT_NO_FATAL_FAILURE(c.check<float>(3e-6)) << "keys, gap " << i << " of " << gap;
      std::swap(c.key_gaps, c.value_gaps);
      ASSERT_NO_FATAL_FAILURE(c.check<float>(3e-6)) << "values, gap " << i << " of " << gap;
    }
  }
  for (size_t shift : {1, 2, 4}) {
    Case c;
    c.shift = shift;
    c.query_gaps = {3, 5};
    ASSERT_NO_FATAL_FAILURE(c.check<float>(3e-6)) << "shifted by " << shift;
  }
  Case c;
  c.blocks = {7, 2, 9, 3, 4, 1, 0, 5};
  c.unused_blocks = 1;
  c.check<float>(3e-6);
}

/// Whose exponentials are 0 or infinity, and whose largest lies far below 0.
TEST_P(DecodeAttentionTest, LargeScores) {
  Case c;
  c.scale = 300;
  c.spans = {0, 2, 5, 6};
  c.check<float>(2e-4);
}

TEST_P(DecodeAttentionTest, LargestHead) {
  Case c;
  c.group = 8;
  c.key_heads = 1;
  c.size = cuda::kMaxHeadSize;
  c.slots = 1;
  c.scale = 0x1p-6f;
  c.spans = {0, 3};
  c.check<float>(1e-5);
}

TEST_P(DecodeAttentionTest, HalfPrecision) {
  Case c;
  c.size = 64;
  c.check<Half>(0x1p-9);
  c.check<BFloat16>(0x1p-6);
  c.shift = 1;
  c.check<BFloat16>(0x1p-6);
}

TEST_P(DecodeAttentionTest, WindowsRowsAndEmptyRanges) {
  for (int64_t window : {0, 1, 20}) {
    Case c;
    c.window = window;
    c.rows = {1, 0};
    c.spans = {0, 40, 12, 12};
    c.blocks = {7, 2, 9, 7, 2, 0};  // rows that share pages
    ASSERT_NO_FATAL_FAILURE(c.check<float>(3e-6)) << window;
  }
}

TEST_P(DecodeAttentionTest, OneBufferGoesRound) {
  Case c;
  c.paged = false;
  c.slots = 24;
  c.spans = {20, 44, 1000, 1003};
  c.check<float>(3e-6);
}

TEST_P(DecodeAttentionTest, SeveralPieces) {
  Case c;
  c.size = 8;
  c.slots = 200;
  c.spans = {0, 600, 3, 260};
  c.check<float>(3e-6);
}

TEST_P(DecodeAttentionTest, WhatIsNotThereIsNotRead) {
  Case c;
  c.spans = {0, 37, -1, 3, 5, 4, 0, 49, 0, 20, 0, 20, 0, 48};
  c.rows = {0, 0, 0, 0, 2, -1, 1};
  c.blocks = {7, 2, 9, 4, 10, -1};  // no page 10
  c.check<float>(3e-6);
  c.blocks = {7, 2, 9, 1, 4, 10, -1, 1};
  c.unused_blocks = 1;
  c.check<float>(3e-6);
}

TEST_P(DecodeAttentionTest, MoreThanAGridHoldsIsRefused) {
  cuda::DecodeAttentionOnDevice<float> many{};
  many.job.group = 8;  // a block of threads for eight heads at first, but then one for each
  many.job.key_heads = many.job.slots = many.job.head_size = 1;
  many.batch = int64_t{1} << 29;
  EXPECT_THROW(cuda::launch_decode_attention(many, nullptr), std::runtime_error);
  many.batch = int64_t{1} << 31;
  EXPECT_THROW(cuda::launch_decode_attention(many, nullptr), std::runtime_error);
}

TEST_P(DecodeAttentionTest, NothingToDoLaunchesNothing) {
  Case c;
  c.spans = {};
  c.check<float>(0);
}

}  // namespace
}  // namespace aegis::kernels
