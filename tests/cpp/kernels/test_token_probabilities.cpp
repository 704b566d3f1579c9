#include "kernels/token_probabilities.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class TokenProbabilitiesTest : public EveryIsa {};
AEGIS_EVERY_ISA(TokenProbabilitiesTest);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kUntouched = -7;

constexpr SampleSettings kEverySetting[] = {
    {1, 0, 1, 0},   {0.5f, 0, 1, 0.1f},   {2, 3, 1, 0},       {1, 50, 0.9f, 0}, {1, 256, 0.5f, 0},
    {1, 300, 1, 0}, {1, 300, 0.7f, 0.1f}, {1, 0, 0.9f, 0},    {3, 0, 0.99f, 0}, {0, 0, 1, 0},
    {1, 5, 0, 0},   {1e30f, 0, 0.3f, 0},  {1e-42f, 40, 1, 0}, {1, 1, 1, 0},
};

/// Rows of scores, between and around which there is +infinity: a row that reads it takes it.
template <class Element>
struct Batch {
  int64_t rows, count, stride;
  std::vector<Element> scores;
  SampleSettings settings{1, 0, 1, 0};
  bool keep_ties = false;

  template <class Value>
  Batch(int64_t rows, int64_t count, Value&& value)
      : rows(rows), count(count), stride(count + 1 + count % 3) {
    scores.assign(1 + rows * stride + 64, from_float<Element>(kInfinity));
    for (int64_t i = 0; i < rows * count; ++i) {
      at(i / count, i % count) = from_float<Element>(value());
    }
  }

  Element& at(int64_t row, int64_t i) { return scores[1 + row * stride + i]; }
  float value(int64_t row, int64_t i) { return to_float(at(row, i)); }

  /// Rows of the result, which lie apart; what lies between them is left alone.
  std::vector<std::vector<float>> run(Isa isa) const { return run(isa, 0, rows); }
  std::vector<std::vector<float>> run(Isa isa, int64_t begin, int64_t end) const {
    const int64_t out_stride = count + 5;
    std::vector<float> out(3 + rows * out_stride, kUntouched);
    token_probabilities_kernel<Element>(isa)(
        {scores.data() + 1, stride, count, &settings, 0, keep_ties, out.data() + 3, out_stride},
        begin, end);
    std::vector<std::vector<float>> result;
    for (int64_t r = 0; r < rows; ++r) {
      const auto first = out.begin() + 3 + r * out_stride;
      result.emplace_back(first, first + count);
      std::fill_n(first, begin <= r && r < end ? count : 0, kUntouched);
    }
    EXPECT_EQ(std::count(out.begin(), out.end(), kUntouched), std::ssize(out));
    return result;
  }
};

template <class Element>
void same_as_scalar(Isa isa, const Batch<Element>& batch) {
  const auto got = batch.run(isa), want = batch.run(Isa::scalar);
  const SampleSettings& s = batch.settings;
  for (int64_t r = 0; r < batch.rows; ++r) {
    ASSERT_EQ(got[r], want[r]) << "row " << r << " of " << batch.count << ": " << s.temperature
                               << ", " << s.top_k << ", " << s.top_p << ", " << s.min_p << ", ties "
                               << batch.keep_ties;
    ASSERT_NEAR(std::accumulate(got[r].begin(), got[r].end(), 0.0), 1, 2e-6);
  }
}

template <class Element>
void every_width(Isa isa) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t count = 1; count < 12'000; count += count < 40 ? 1 : count / 2 + 1) {
    Batch<Element> batch(2, count, [&] { return 2 * normal(random); });
    for (const SampleSettings& settings : kEverySetting) {
      batch.settings = settings;
      batch.keep_ties = !batch.keep_ties;
      same_as_scalar(isa, batch);
    }
  }
}

template <class Element>
void every_kind_of_number(Isa isa) {
  const float kinds[] = {kNan, kInfinity, -kInfinity, 0, -0.0f, 1e-45f, -1e-40f,
                         1,    1,         -1,         2, 6e4f,  -6e4f};
  std::mt19937 random(2);
  for (int round = 0; round < 30; ++round) {
    const unsigned from = round % 3 == 0 ? 0 : round % 3 == 1 ? 1 : 2;  // without NaN, infinity
    const int64_t count = 1 + random() % 1500;
    Batch<Element> batch(3, count, [&] {
      return random() % 50 ? 1.0f : kinds[from + random() % (std::size(kinds) - from)];
    });
    for (const SampleSettings& settings : kEverySetting) {
      batch.settings = settings;
      batch.keep_ties = random() % 2;
      same_as_scalar(isa, batch);
    }
  }
}

template <class Element>
std::vector<int64_t> descending(Batch<Element>& batch, int64_t row) {
  std::vector<int64_t> order(batch.count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return batch.value(row, a) > batch.value(row, b); });
  return order;
}

/// The same in float64 with a full sort.
template <class Element>
std::vector<double> law(Batch<Element>& batch, int64_t row) {
  const SampleSettings& s = batch.settings;
  const std::vector<int64_t> order = descending(batch, row);
  const auto at = [&](size_t i) { return double{batch.value(row, order[i])}; };
  size_t kept = order.size();
  if (s.top_k >= 1 && s.top_k < static_cast<double>(batch.count)) {
    kept = static_cast<size_t>(s.top_k);
    while (batch.keep_ties && kept < order.size() && at(kept) == at(kept - 1)) ++kept;
  }
  std::vector<double> weights;
  for (size_t i = 0; i < kept; ++i) weights.push_back(std::exp((at(i) - at(0)) / s.temperature));
  double all = std::accumulate(weights.begin(), weights.end(), 0.0), sum = 0;
  if (s.top_p < 1) {
    size_t n = 0;
    while (sum < s.top_p * all) sum += weights[n++];
    weights.resize(n);
  }
  while (weights.back() < s.min_p) weights.pop_back();
  all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> law(batch.count);
  for (size_t i = 0; i < weights.size(); ++i) law[order[i]] = weights[i] / all;
  return law;
}

template <class Element>
void is_the_law(Isa isa) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (int64_t count : {3, 40, 1000, 5000}) {
    const float spread = count < 1000 ? 1 : 0.5f + static_cast<float>(count) / 2000;
    Batch<Element> batch(1, count, [&] { return spread * normal(random); });
    for (const SampleSettings& settings : kEverySetting) {
      if (settings.temperature <= 1e-40f || settings.top_p <= 0) continue;
      batch.settings = settings;
      batch.keep_ties = !batch.keep_ties;
      const std::vector<double> want = law(batch, 0);
      const std::vector<float> got = batch.run(isa)[0];
      const float best = batch.value(0, descending(batch, 0)[0]);
      for (int64_t i = 0; i < count; ++i) {
        const double depth = (best - batch.value(0, i)) / settings.temperature;
        ASSERT_NEAR(got[i], want[i], (1e-6 + 1.2e-7 * depth) * want[i] + 1e-30)
            << i << " of " << count << ": " << settings.temperature << ", " << settings.top_k
            << ", " << settings.top_p << ", " << settings.min_p;
      }
    }
  }
}

#define AEGIS_PROBABILITIES_TEST(Name, function)                                \
  TEST_P(TokenProbabilitiesTest, Name##_float) { function<float>(GetParam()); } \
  TEST_P(TokenProbabilitiesTest, Name##_Half) { function<Half>(GetParam()); }   \
  TEST_P(TokenProbabilitiesTest, Name##_BFloat16) { function<BFloat16>(GetParam()); }
AEGIS_PROBABILITIES_TEST(EveryWidth, every_width)
AEGIS_PROBABILITIES_TEST(EveryKindOfNumber, every_kind_of_number)
AEGIS_PROBABILITIES_TEST(IsTheLaw, is_the_law)
#undef AEGIS_PROBABILITIES_TEST

/// More ties than are listed, some of which are kept: those of lower index, in whichever group,
/// block and element they end.
TEST_P(TokenProbabilitiesTest, TiesEndAnywhere_case24) {
  constexpr int64_t kCount = 20'000;
  for (int64_t kept : {257, 511, 513, 4096, 8193, 9000, 19'999}) {
    int64_t i = 0;
    Batch<float> batch(1, kCount, [&] { return i++ == 15'000 ? 2.0f : i % 3 ? 1.0f : 0.0f; });
    batch.settings = {1, static_cast<float>(kept), 1, 0};
    const std::vector<float> got = batch.run(GetParam())[0];
    const std::vector<int64_t> order = descending(batch, 0);
    for (int64_t place = 0; place < kCount; ++place) {
      ASSERT_EQ(got[order[place]] > 0, place < kept) << order[place] << " of " << kept;
    }
  }
}

TEST_P(TokenProbabilitiesTest, BrokenRowsTakeOneToken_case15) {
  for (int64_t count : {3, 16, 1030}) {
    Batch<float> batch(4, count, [] { return 0.0f; });
    batch.at(0, 1) = kNan;
    batch.at(0, 2) = 5;
    batch.at(1, 1) = batch.at(1, 2) = kInfinity;
    for (int64_t i = 0; i < count; ++i) batch.at(2, i) = -kInfinity;
    for (int64_t i = 0; i < count; ++i) batch.at(3, i) = kNan;
    const int64_t taken[] = {2, 1, 0, 0};
    for (const SampleSettings& settings : kEverySetting) {
      batch.settings = settings;
      const auto got = batch.run(GetParam());
      for (int64_t r = 0; r < 4; ++r) {
        std::vector<float> want(count);
        want[taken[r]] = 1;
        ASSERT_EQ(got[r], want) << r;
      }
    }
  }
}

TEST_P(TokenProbabilitiesTest, OnlyItsRows_case28) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  Batch<float> batch(5, 90, [&] { return normal(random); });
  const auto whole = batch.run(GetParam()), part = batch.run(GetParam(), 2, 4);
  for (int64_t r = 0; r < 5; ++r) {
    EXPECT_EQ(part[r], r == 2 || r == 3 ? whole[r] : std::vector<float>(90, kUntouched));
  }
}

TEST_P(TokenProbabilitiesTest, LevelsBelowTheirOwnVersionTakeTheNextLower) {
  const Isa isa = GetParam();
  const auto kernel = token_probabilities_kernel<Half>;
  if (isa > Isa::avx512) {
    EXPECT_EQ(kernel(isa), kernel(Isa::avx512));
  } else if (isa != Isa::scalar) {
    EXPECT_NE(kernel(isa), kernel(Isa::scalar));
  }
}

}  // namespace
}  // namespace aegis::kernels
