#include "kernels/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

#include "kernels/every_isa.h"
#include "kernels/philox.h"
#include "last_page.h"
#include "score_rows.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Not inlined: where gcc inlines only one of a pair, it warns of a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace aegis::kernels {
namespace {

class SampleTest : public EveryIsa {};
AEGIS_EVERY_ISA(SampleTest);

struct Result {
  std::vector<int64_t> tokens;
  std::vector<unsigned char> valid;
  std::vector<float> logprobs;
};

template <class Element>
struct Batch : ScoreRows<Element> {
  std::vector<SampleState> states;

  template <class Value>
  Batch(int64_t rows, int64_t count, Value&& value) : ScoreRows<Element>(rows, count, value) {
    for (int64_t r = 0; r < rows; ++r) states.push_back({1, r, 0, 0});
  }

  Result run(Isa isa) const { return run(isa, 0, this->rows); }
  Result run(Isa isa, int64_t begin, int64_t end) const {
    const int64_t rows = this->rows;
    Result result{std::vector<int64_t>(rows, -1), std::vector<unsigned char>(rows, 2),
                  std::vector<float>(rows, -1)};
    std::vector<SampleState> advanced = states;
    sample_kernel<Element>(isa)(
        {this->data(), this->stride, this->count, &this->settings, 0, advanced.data(),
         this->keep_ties, result.tokens.data(), reinterpret_cast<bool*>(result.valid.data()),
         result.logprobs.data()},
        begin, end);
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(advanced[r].position, states[r].position + (begin <= r && r < end));
    }
    return result;
  }
};

template <class Element>
void same_as_scalar(Isa isa, const Batch<Element>& batch) {
  const Result got = batch.run(isa), want = batch.run(Isa::scalar);
  for (int64_t r = 0; r < batch.rows; ++r) {
    const SampleSettings& s = batch.settings;
    ASSERT_EQ(got.tokens[r], want.tokens[r])
        << "row " << r << " of " << batch.count << ": " << s.temperature << ", " << s.top_k << ", "
        << s.top_p << ", " << s.min_p << ", ties " << batch.keep_ties;
    ASSERT_EQ(got.valid[r], want.valid[r]);
    ASSERT_EQ(__builtin_bit_cast(uint32_t, got.logprobs[r]),
              __builtin_bit_cast(uint32_t, want.logprobs[r]));
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
void keeps_the_law(Isa isa) {
  of_the_law<Batch<Element>>([&](Batch<Element>& batch) {
    const std::vector<double> want = batch.law(0);
    const SampleSettings& s = batch.settings;
    for (int draw = 0; draw < 20; ++draw) {
      batch.states[0].position = draw;
      const Result got = batch.run(isa);
      ASSERT_TRUE(got.valid[0]);
      ASSERT_NEAR(got.logprobs[0], std::log(want[got.tokens[0]]), 2e-5)
          << batch.count << ": " << s.temperature << ", " << s.top_k << ", " << s.top_p << ", "
          << s.min_p;
    }
  });
}

template <class Element>
void nan_anywhere(Isa isa) {
  for (int64_t count : {1, 15, 16, 17, 63, 64, 65, 1023, 1024, 1090}) {
    for (int64_t nan = 0; nan < count; nan += 1 + count / 90) {
      float next = 0;
      Batch<Element> batch(2, count, [&] { return next += 1 / 16.0f; });
      batch.at(0, nan) = from_float<Element>(kNan);
      for (const SampleSettings& settings : {kEverySetting[0], kEverySetting[3]}) {
        batch.settings = settings;
        const Result got = batch.run(isa);
        ASSERT_FALSE(got.valid[0]) << count << ", NaN at " << nan;
        ASSERT_TRUE(got.valid[1]);
        const int64_t best = count == 1 ? 0 : nan == count - 1 ? count - 2 : count - 1;
        if (std::is_same_v<Element, float>) {
          ASSERT_EQ(got.tokens[0], best) << count << ", NaN at " << nan;
        }
        ASSERT_LT(got.tokens[0], count);
      }
    }
  }
}

template <class Element>
void reads_nothing_behind_a_row(Isa isa) {
  LastPage page;
  for (int64_t count = 1; count <= 300; ++count) {
    Element* row = page.last<Element>(count);
    for (int64_t i = 0; i < count; ++i) row[i] = from_float<Element>(static_cast<float>(i % 7));
    for (const SampleSettings& settings : kEverySetting) {
      SampleState state{1, 2, 3, 4};
      int64_t token = -1;
      sample_kernel<Element>(isa)(
          {row, 0, count, &settings, 0, &state, true, &token, nullptr, nullptr}, 0, 1);
      ASSERT_GE(token, 0);
      ASSERT_LT(token, count);
    }
  }
}

#define AEGIS_SAMPLE_TEST(Name, function)                           \
  TEST_P(SampleTest, Name##_float) { function<float>(GetParam()); } \
  TEST_P(SampleTest, Name##_Half) { function<Half>(GetParam()); }   \
  TEST_P(SampleTest, Name##_BFloat16) { function<BFloat16>(GetParam()); }
AEGIS_SAMPLE_TEST(EveryWidth, every_width)
AEGIS_SAMPLE_TEST(EveryKindOfNumber, every_kind_of_number)
AEGIS_SAMPLE_TEST(KeepsTheLaw, keeps_the_law)
AEGIS_SAMPLE_TEST(NanAnywhere_case15, nan_anywhere)
AEGIS_SAMPLE_TEST(ReadsNothingBehindARow, reads_nothing_behind_a_row)
#undef AEGIS_SAMPLE_TEST

/// Candidates come in such an order that all of them fit nowhere.
TEST_P(SampleTest, RisingRows) {
  for (float top_k : {2.0f, 50.0f, 256.0f}) {
    float next = 0;
    Batch<float> batch(1, 70'000, [&] { return next += 1e-4f; });
    batch.settings = {1, top_k, 1, 0};
    for (int draw = 0; draw < 5; ++draw) {
      batch.states[0].position = draw;
      const Result got = batch.run(GetParam());
      EXPECT_GE(got.tokens[0], batch.count - static_cast<int64_t>(top_k));
    }
    same_as_scalar(GetParam(), batch);
  }
}

TEST_P(SampleTest, OnlyItsRows_case28) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  Batch<float> batch(5, 90, [&] { return normal(random); });
  const Result whole = batch.run(GetParam()), part = batch.run(GetParam(), 2, 4);
  for (int64_t r = 0; r < 5; ++r) {
    const bool inside = r == 2 || r == 3;
    EXPECT_EQ(part.tokens[r], inside ? whole.tokens[r] : -1);
    EXPECT_EQ(part.valid[r], inside ? 1 : 2);
  }
}

TEST_P(SampleTest, AllocatesNothingAfterTheFirstCall) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> logits(50'000);
  for (float& logit : logits) logit = normal(random);
  SampleState state{1, 2, 3, 4};
  int64_t token, first = -1;
  for (int turn = 0; turn < 2; ++turn) {
    for (int64_t count : {50'000, 300, 50'000}) {
      for (const SampleSettings& settings : kEverySetting) {
        sample_kernel<float>(GetParam())(
            {logits.data(), 0, count, &settings, 0, &state, true, &token, nullptr, nullptr}, 0, 1);
      }
    }
    if (turn == 0) first = allocations;
  }
  EXPECT_EQ(allocations, first);
}

TEST_P(SampleTest, LevelsBelowTheirOwnVersionTakeTheNextLower) {
  const Isa isa = GetParam();
  if (isa > Isa::avx512) {
    EXPECT_EQ(sample_kernel<Half>(isa), sample_kernel<Half>(Isa::avx512));
  } else if (isa != Isa::scalar) {
    EXPECT_NE(sample_kernel<Half>(isa), sample_kernel<Half>(Isa::scalar));
  }
}

/// Published with the generator: counters and keys of zeroes, ones, and digits of pi.
TEST(Philox, KnownAnswers) {
  const auto expect = [](Philox counter, uint64_t key, Philox want) {
    const Philox got = philox(counter, key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got.words[i], want.words[i]) << i;
  };
  expect({{0, 0, 0, 0}}, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect({{~0u, ~0u, ~0u, ~0u}}, ~uint64_t{0}, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Philox, UniformsFillTheUnitIntervalAndNotItsEnds_case30) {
  double sum = 0, least = 1, most = 0;
  for (int64_t i = 0; i < 100'000; ++i) {
    const double u = uniform(3, i % 10, i / 10, 1);
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    least = std::min(least, u);
    most = std::max(most, u);
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.004);
  EXPECT_LT(least, 1e-4);
  EXPECT_GT(most, 1 - 1e-4);
}

}  // namespace
}  // namespace aegis::kernels
