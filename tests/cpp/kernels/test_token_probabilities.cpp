#include "kernels/token_probabilities.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/every_isa.h"
#include "score_rows.h"

namespace aegis::kernels {
namespace {

class TokenProbabilitiesTest : public EveryIsa {};
AEGIS_EVERY_ISA(TokenProbabilitiesTest);

constexpr float kUntouched = -7;

template <class Element>
struct Batch : ScoreRows<Element> {
  using ScoreRows<Element>::ScoreRows;

  /// Rows of the result, which lie apart; what lies between them is left alone.
  std::vector<std::vector<float>> run(Isa isa) const { return run(isa, 0, this->rows); }
  std::vector<std::vector<float>> run(Isa isa, int64_t begin, int64_t end) const {
    const int64_t rows = this->rows, count = this->count, out_stride = count + 5;
    std::vector<float> out(3 + rows * out_stride, kUntouched);
    token_probabilities_kernel<Element>(isa)({this->data(), this->stride, count, &this->settings, 0,
                                              this->keep_ties, out.data() + 3, out_stride},
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
  of_every_width<Batch<Element>>([&](const auto& batch) { same_as_scalar(isa, batch); });
}

template <class Element>
void every_kind_of_number(Isa isa) {
  of_every_kind_of_number<Batch<Element>>([&](const auto& batch) { same_as_scalar(isa, batch); });
}

template <class Element>
void is_the_law(Isa isa) {
  of_the_law<Batch<Element>>([&](Batch<Element>& batch) {
    const SampleSettings& s = batch.settings;
    const std::vector<double> want = batch.law(0);
    const std::vector<float> got = batch.run(isa)[0];
    const float best = batch.value(0, batch.descending(0)[0]);
    for (int64_t i = 0; i < batch.count; ++i) {
      const double depth = (best - batch.value(0, i)) / s.temperature;
      ASSERT_NEAR(got[i], want[i], (1e-6 + 1.2e-7 * depth) * want[i] + 1e-30)
          << i << " of " << batch.count << ": " << s.temperature << ", " << s.top_k << ", "
          << s.top_p << ", " << s.min_p;
    }
  });
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
    const std::vector<int64_t> order = batch.descending(0);
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
