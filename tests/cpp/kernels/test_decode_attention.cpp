#include "kernels/decode_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class DecodeAttentionTest : public EveryIsa {};
AEGIS_EVERY_ISA(DecodeAttentionTest);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One batch row and its cache row. Between the elements that count everything is NaN, and each
/// operand ends where its vector does, so that AddressSanitizer sees a read behind it.
template <class Element>
struct Cache {
  int64_t group, key_heads, slots, size;
  int64_t gap = 3;  ///< elements between rows of a tensor
  float scale = 1, softcap = 0;
  std::vector<Element> query, keys, values, out;

  Cache(int64_t group, int64_t key_heads, int64_t slots, int64_t size)
      : group(group),
        key_heads(key_heads),
        slots(slots),
        size(size),
        query(group * key_heads * (size + gap) - gap, from_float<Element>(kNan)),
        keys(key_heads * slots * (size + gap) - gap, from_float<Element>(kNan)),
        values(keys),
        out(group * key_heads * size) {}

  Element& query_at(int64_t head, int64_t i) { return query[head * (size + gap) + i]; }
  int64_t row(int64_t key_head, int64_t slot) const {
    return (key_head * slots + slot) * (size + gap);
  }

  /// Numbers of size 1 where [begin, end) lies; the other slots stay NaN.
  void fill(int64_t begin, int64_t end, unsigned seed = 1) {
    std::mt19937 random(seed);
    const auto value = [&] {
      return from_float<Element>(std::normal_distribution<float>()(random));
    };
    for (int64_t head = 0; head < group * key_heads; ++head) {
      for (int64_t i = 0; i < size; ++i) query_at(head, i) = value();
    }
    for (int64_t head = 0; head < key_heads; ++head) {
      for (int64_t p = begin; p < end; ++p) {
        for (int64_t i = 0; i < size; ++i) {
          keys[row(head, p % slots) + i] = value();
          values[row(head, p % slots) + i] = value();
        }
      }
    }
  }

  /// In `pieces` pieces.
  void run(Isa isa, int64_t begin, int64_t end, int64_t pieces) {
    const int64_t stride = size + gap;
    const DecodeAttention<Element> job{
        query.data(),  0,    stride,         keys.data(), 0,          slots * stride, stride,
        values.data(), 0,    slots * stride, stride,      out.data(), group,          key_heads,
        slots,         size, scale,          softcap};
    const auto kernel = decode_attention_kernel<Element>(isa);
    std::vector<float> parts(pieces * group * part_size(size), kNan);
    for (int64_t head = 0; head < key_heads; ++head) {
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const auto cut = [&](int64_t i) { return begin + (end - begin) * i / pieces; };
        kernel.attend(job, {0, 0, head, cut(piece), cut(piece + 1)},
                      parts.data() + piece * group * part_size(size));
      }
      kernel.combine(job, 0, head, parts.data(), pieces);
    }
  }

  float out_at(int64_t head, int64_t i) const { return to_float(out[head * size + i]); }

  /// By definition, as double.
  std::vector<double> exact(int64_t head, int64_t begin, int64_t end) {
    std::vector<double> scores, result(size);
    double sum = 0, largest = -kInfinity;
    for (int64_t p = begin; p < end; ++p) {
      double score = 0;
      for (int64_t i = 0; i < size; ++i) {
        score +=
            double{to_float(query_at(head, i))} * to_float(keys[row(head / group, p % slots) + i]);
      }
      score *= scale;
      if (softcap > 0) score = softcap * std::tanh(score / softcap);
      scores.push_back(score);
      largest = std::fmax(largest, score);
    }
    for (double& score : scores) sum += score = std::exp(score - largest);
    for (int64_t p = begin; p < end; ++p) {
      for (int64_t i = 0; i < size; ++i) {
        result[i] += scores[p - begin] / sum * to_float(values[row(head / group, p % slots) + i]);
      }
    }
    return result;
  }
};

template <class Element>
constexpr double kTolerance = 4e-6;
template <>
constexpr double kTolerance<Half> = 0x1p-10;
template <>
constexpr double kTolerance<BFloat16> = 0x1p-7;

template <class Element>
void expect_exact(Cache<Element>& cache, Isa isa, int64_t begin, int64_t end, int64_t pieces) {
  cache.fill(begin, end, static_cast<unsigned>(cache.size + 7 * begin + end));
  cache.run(isa, begin, end, pieces);
  for (int64_t head = 0; head < cache.group * cache.key_heads; ++head) {
    const std::vector<double> want = cache.exact(head, begin, end);
    for (int64_t i = 0; i < cache.size; ++i) {
      const double tolerance = kTolerance<Element> * (1 + std::abs(want[i]));
      ASSERT_NEAR(cache.out_at(head, i), want[i], tolerance)
          << "head " << head << " of " << cache.group << " x " << cache.key_heads << ", element "
          << i << " of " << cache.size << ", positions " << begin << " to " << end;
    }
  }
}

template <class Element>
void every_head_size(Isa isa) {
  for (int64_t size = 1; size <= 140; ++size) {
    Cache<Element> cache(1 + size % 5, 1 + size % 2, 21, size);
    cache.scale = 1 / std::sqrt(static_cast<float>(size));
    cache.softcap = size % 3 == 0 ? 1.5f : 0;
    expect_exact(cache, isa, 2, 2 + 1 + size % 19, 1);
  }
}

template <class Element>
void every_length(Isa isa) {
  for (int64_t length = 1; length <= 140; ++length) {
    Cache<Element> cache(1 + length % 7, 1, 140, 19);
    cache.scale = 0.2f;
    expect_exact(cache, isa, 0, length, 1 + length % 3 % length);
  }
}

template <class Element>
void every_group(Isa isa) {
  for (int64_t group = 1; group <= 17; ++group) {
    Cache<Element> cache(group, 2, 70, 40);
    cache.scale = 0.15f;
    expect_exact(cache, isa, 0, 70, 2);
  }
}

/// Ranges that begin anywhere in the ring and go round its end.
template <class Element>
void wrapped(Isa isa) {
  for (int64_t begin : {1, 30, 63, 64, 65, 128, 3000, 3001}) {
    for (int64_t length : {1, 2, 36, 64, 65, 67}) {
      Cache<Element> cache(3, 2, 67, 33);
      cache.scale = 0.2f;
      expect_exact(cache, isa, begin, begin + length, length > 40 ? 3 : 1);
    }
  }
}

template <class Element>
void long_ranges(Isa isa) {
  Cache<Element> cache(4, 1, 2000, 64);
  cache.scale = 0.125f;
  expect_exact(cache, isa, 1999, 3999, 8);
}

template <class Element>
void no_positions(Isa isa) {
  Cache<Element> cache(3, 2, 5, 50);
  cache.run(isa, 4, 4, 0);
  for (Element value : cache.out) EXPECT_EQ(to_float(value), 0);
}

/// Scores of −∞ weigh nothing; if all are, there is nothing to weigh, as in torch.
template <class Element>
void scores_without_end(Isa isa) {
  for (int64_t finite : {-1, 0, 70}) {
    Cache<Element> cache(1, 1, 100, 1);
    cache.query_at(0, 0) = from_float<Element>(1);
    for (int64_t p = 0; p < 100; ++p) {
      cache.keys[cache.row(0, p)] = from_float<Element>(p == finite ? 2 : -kInfinity);
      cache.values[cache.row(0, p)] = from_float<Element>(static_cast<float>(p));
    }
    cache.run(isa, 0, 100, 2);
    if (finite < 0) {
      EXPECT_TRUE(std::isnan(cache.out_at(0, 0)));
    } else {
      EXPECT_EQ(cache.out_at(0, 0), static_cast<float>(finite));
    }
  }
}

template <class Element>
void nan_goes_through(Isa isa) {
  for (int64_t where : {0, 5, 63, 64, 99}) {
    Cache<Element> cache(5, 1, 100, 20);
    cache.fill(0, 100);
    cache.keys[cache.row(0, where) + 19] = from_float<Element>(kNan);
    cache.run(isa, 0, 100, 2);
    for (Element value : cache.out) EXPECT_TRUE(std::isnan(to_float(value)));
    cache.fill(0, 100);
    cache.values[cache.row(0, where) + 19] = from_float<Element>(kNan);
    cache.run(isa, 0, 100, 2);
    for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(cache.out_at(3, i)), i == 19);
  }
}

/// The same bits from pages, in any order and of any size, as from one buffer; pages that no block
/// names, and what lies behind the end of the last one, are NaN.
template <class Element>
void on_pages(Isa isa) {
  for (int64_t page_slots : {1, 3, 16, 100, 300}) {
    Cache<Element> cache(3, 2, 200, 33), paged(3, 2, page_slots, 33);
    const int64_t begin = 5, end = 200, stride = cache.size + cache.gap;
    const int64_t count = (end + page_slots - 1) / page_slots, page = 2 * page_slots * stride;
    cache.fill(begin, end);
    cache.run(isa, begin, end, 2);
    std::vector<int64_t> blocks(count);
    for (int64_t i = 0; i < count; ++i) blocks[i] = (7 * i + 3) % (2 * count + 1);
    const Element nan = from_float<Element>(kNan);
    std::vector<Element> keys(page * (2 * count + 1), nan), values(keys);
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t to = blocks[p / page_slots] * page + paged.row(head, p % page_slots);
        std::copy_n(&cache.keys[cache.row(head, p)], cache.size, &keys[to]);
        std::copy_n(&cache.values[cache.row(head, p)], cache.size, &values[to]);
      }
    }
    const int64_t head = page_slots * stride;
    const DecodeAttention<Element> job{cache.query.data(),
                                       0,
                                       stride,
                                       keys.data(),
                                       page,
                                       head,
                                       stride,
                                       values.data(),
                                       page,
                                       head,
                                       stride,
                                       paged.out.data(),
                                       3,
                                       2,
                                       page_slots,
                                       cache.size,
                                       cache.scale,
                                       0,
                                       blocks.data(),
                                       count};
    const auto kernel = decode_attention_kernel<Element>(isa);
    const int64_t part = 3 * part_size(cache.size), middle = begin + (end - begin) / 2;
    std::vector<float> parts(2 * part, kNan);
    for (int64_t h = 0; h < 2; ++h) {
      kernel.attend(job, {0, 0, h, begin, middle}, parts.data());
      kernel.attend(job, {0, 0, h, middle, end}, parts.data() + part);
      kernel.combine(job, 0, h, parts.data(), 2);
    }
    for (size_t i = 0; i < cache.out.size(); ++i) {
      ASSERT_EQ(to_float(paged.out[i]), to_float(cache.out[i])) << page_slots << " slots, " << i;
    }
  }
}

#define AEGIS_ATTENTION_TEST(Name, function)                                 \
  TEST_P(DecodeAttentionTest, Name##_float) { function<float>(GetParam()); } \
  TEST_P(DecodeAttentionTest, Name##_Half) { function<Half>(GetParam()); }   \
  TEST_P(DecodeAttentionTest, Name##_BFloat16) { function<BFloat16>(GetParam()); }
AEGIS_ATTENTION_TEST(EveryHeadSize, every_head_size)
AEGIS_ATTENTION_TEST(EveryLength, every_length)
AEGIS_ATTENTION_TEST(EveryGroup, every_group)
AEGIS_ATTENTION_TEST(Wrapped, wrapped)
AEGIS_ATTENTION_TEST(LongRanges, long_ranges)
AEGIS_ATTENTION_TEST(NoPositions, no_positions)
AEGIS_ATTENTION_TEST(ScoresWithoutEnd, scores_without_end)
AEGIS_ATTENTION_TEST(NanGoesThrough, nan_goes_through)
AEGIS_ATTENTION_TEST(OnPages, on_pages)
#undef AEGIS_ATTENTION_TEST

/// The weights of scores 0 and `score`, where softmax makes of them what it may.
std::pair<float, float> weights_of(Isa isa, float score, float softcap = 0) {
  Cache<float> cache(1, 1, 2, 2);
  cache.softcap = softcap;
  cache.query_at(0, 0) = 1;
  cache.query_at(0, 1) = 0;
  for (int64_t p : {0, 1}) {
    cache.keys[cache.row(0, p)] = p ? score : 0;
    cache.keys[cache.row(0, p) + 1] = 0;
    cache.values[cache.row(0, p)] = p == 0;
    cache.values[cache.row(0, p) + 1] = p == 1;
  }
  cache.run(isa, 0, 2, 1);
  return {cache.out_at(0, 0), cache.out_at(0, 1)};
}

TEST_P(DecodeAttentionTest, ExponentialsAreGoodToTwoUnits) {
  for (double score = 0; score > -87.3; score -= 0.00731) {
    const auto rounded = static_cast<float>(score);
    const auto [one, weight] = weights_of(GetParam(), rounded);
    const double exponential = std::exp(double{rounded});
    // Two units of the exponential's own, and one of the division.
    ASSERT_NEAR(weight / (exponential / (1 + exponential)), 1, 3 * 0x1p-23) << rounded;
    ASSERT_NEAR(one * (1 + exponential), 1, 2 * 0x1p-23) << rounded;
  }
}

TEST_P(DecodeAttentionTest, VanishingExponentials) {
  for (float score : {-87.34f, -88.0f, -104.0f, -1e30f, -kInfinity}) {
    const auto [one, weight] = weights_of(GetParam(), score);
    EXPECT_EQ(one, 1);
    EXPECT_LT(weight, 0x1p-126f) << score;
  }
}

TEST_P(DecodeAttentionTest, SoftCapsAreGoodToAFewUnits) {
  for (float cap : {0.5f, 3.0f, 50.0f}) {
    for (double y = -6; y < 6; y += 0.00391) {
      const auto score = static_cast<float>(y * cap);
      const auto [zero, weight] = weights_of(GetParam(), score, cap);
      const double capped = cap * std::tanh(double{score} / cap);
      const double want = 1 / (1 + std::exp(-capped));
      // An error of the score is one of the weight's logarithm.
      const double tolerance = (4 * std::abs(capped) + 4) * 0x1p-23;
      ASSERT_NEAR(weight / want, 1, tolerance) << score << " capped at " << cap;
      ASSERT_NEAR(zero * (1 + std::exp(capped)), 1, tolerance) << score << " capped at " << cap;
    }
    EXPECT_NEAR(weights_of(GetParam(), kInfinity, cap).second, 1 / (1 + std::exp(-cap)), 1e-6);
    EXPECT_TRUE(std::isnan(weights_of(GetParam(), kNan, cap).second));
  }
}

/// A single position: its value, whatever the score.
template <class Element>
Element rounded_by_combine(Isa isa, float first, float second) {
  Cache<Element> cache(1, 1, 2, 1);
  cache.query_at(0, 0) = cache.keys[cache.row(0, 0)] = cache.keys[cache.row(0, 1)] =
      from_float<Element>(0);
  cache.values[cache.row(0, 0)] = from_float<Element>(first);
  cache.values[cache.row(0, 1)] = from_float<Element>(second);
  cache.run(isa, 0, 2, 1);
  return cache.out[0];
}

TEST_P(DecodeAttentionTest, ResultsAreRoundedOnceToNearestEven) {
  const Isa isa = GetParam();
  EXPECT_EQ(to_float(rounded_by_combine<BFloat16>(isa, 1, 1 + 0x1p-7)), 1);
  EXPECT_EQ(to_float(rounded_by_combine<BFloat16>(isa, 1 + 0x1p-7, 1 + 0x1p-6)), 1 + 0x1p-6);
  EXPECT_EQ(to_float(rounded_by_combine<Half>(isa, 1, 1 + 0x1p-10)), 1);
  EXPECT_EQ(to_float(rounded_by_combine<Half>(isa, 1 + 0x1p-10, 1 + 0x1p-9)), 1 + 0x1p-9);
  EXPECT_EQ(rounded_by_combine<BFloat16>(isa, 1, kNan).bits, 0x7fff);
}

TEST_P(DecodeAttentionTest, LevelsBelowTheirOwnVersionTakeTheNextLower_case54) {
  const Isa isa = GetParam();
  const auto attend = [](Isa level) { return decode_attention_kernel<float>(level).attend; };
  if (isa == Isa::avx512_vnni || isa == Isa::avx512_bf16) {
    EXPECT_EQ(attend(isa), attend(Isa::avx512));
  } else if (isa != Isa::scalar) {
    EXPECT_NE(attend(isa), attend(Isa::scalar));
  }
  if (isa == Isa::avx512_bf16) {
    EXPECT_NE(decode_attention_kernel<BFloat16>(isa).attend,
              decode_attention_kernel<BFloat16>(Isa::avx512).attend);
  }
}

}  // namespace
}  // namespace aegis::kernels
