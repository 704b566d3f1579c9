// The CUDA kernel and its launcher against the scalar version: the same tokens and the same
// logarithms, to the bit.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/sample.cu"
#include "kernels/sample_cpu.h"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::kernels {

namespace scalar {
template <class Element>
const SampleScans<Element>& sample_scans();
}

namespace {

using simt::DeviceBuffer;

class SampleTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(SampleTest);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class Element>
struct Batch {
  int64_t rows, count, stride;
  std::vector<Element> logits;
  std::vector<SampleSettings> settings;
  std::vector<SampleState> states;
  bool keep_ties = false;
  unsigned blocks = 0;  // 0: as many as the launcher has

  template <class Value>
  Batch(int64_t rows, int64_t count, int64_t gap, SampleSettings all, Value&& value)
      : rows(rows), count(count), stride(count + gap), settings{all} {
    logits.assign(rows * stride, from_float<Element>(kNan));
    for (int64_t i = 0; i < rows * count; ++i) {
      logits[i / count * stride + i % count] = from_float<Element>(value());
    }
    for (int64_t r = 0; r < rows; ++r) states.push_back({11, r, 5, 0});
  }

  struct Result {
    std::vector<int64_t> tokens;
    std::vector<unsigned char> valid;
    std::vector<float> logprobs;
    std::vector<SampleState> states;
  };

  /// With `tokens_only`, the other results are not asked for.
  Result on_device(size_t shift, bool tokens_only = false) const {
    DeviceBuffer<Element> in("logits", logits, shift);
    DeviceBuffer<SampleSettings> options("settings", settings);
    DeviceBuffer<SampleState> state("state", states);
    DeviceBuffer<int64_t> tokens("tokens", static_cast<size_t>(rows));
    DeviceBuffer<unsigned char> valid("valid", static_cast<size_t>(rows));
    DeviceBuffer<float> logprobs("logprobs", static_cast<size_t>(rows));
    const Sample<Element> job{in.data(),
                              stride,
                              count,
                              options.data(),
                              settings.size() > 1,
                              state.data(),
                              keep_ties,
                              tokens.data(),
                              tokens_only ? nullptr : reinterpret_cast<bool*>(valid.data()),
                              tokens_only ? nullptr : logprobs.data()};
    if (blocks == 0) {
      cuda::launch_sample(job, rows, nullptr);
    } else {
      cuda::launch("sample", cuda::sample<Element>, blocks, cuda::kSampleThreads, 0, nullptr, job,
                   rows);
    }
    return {tokens.values(), valid.values(), logprobs.values(), state.values()};
  }

  Result on_host() {
    Result result{std::vector<int64_t>(rows), std::vector<unsigned char>(rows),
                  std::vector<float>(rows), states};
    SampleScratch scratch;
    sample_rows<Element>(scalar::sample_scans<Element>(), scratch,
                         {logits.data(), stride, count, settings.data(), settings.size() > 1,
                          result.states.data(), keep_ties, result.tokens.data(),
                          reinterpret_cast<bool*>(result.valid.data()), result.logprobs.data()},
                         0, rows);
    return result;
  }

  void expect_same(size_t shift = 1) {
    const Result got = on_device(shift), want = on_host();
    for (int64_t r = 0; r < rows; ++r) {
      const SampleSettings& s = settings[settings.size() > 1 ? r : 0];
      EXPECT_EQ(got.tokens[r], want.tokens[r])
          << "row " << r << " of " << count << ", temperature " << s.temperature << ", top_k "
          << s.top_k << ", top_p " << s.top_p << ", min_p " << s.min_p << ", ties " << keep_ties;
      EXPECT_EQ(got.valid[r], want.valid[r]) << r;
      EXPECT_EQ(std::isnan(got.logprobs[r]), std::isnan(want.logprobs[r])) << r;
      if (!std::isnan(want.logprobs[r])) {
        EXPECT_EQ(got.logprobs[r], want.logprobs[r]) << r;
      }
      EXPECT_EQ(got.states[r].position, states[r].position + 1) << r;
    }
  }
};

template <class Element>
void every_filter() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int64_t count : {1, 17, 300, 1500}) {
    for (const SampleSettings& s :
         {SampleSettings{1, 0, 1, 0}, SampleSettings{0.7f, 20, 0.8f, 0},
          SampleSettings{2, 0, 0.9f, 0.05f}, SampleSettings{1, 290, 0.6f, 0.01f}}) {
      Batch<Element> batch(2, count, 3, s, [&] { return normal(random); });
      batch.keep_ties = count % 2;
      batch.expect_same();
    }
  }
}

TEST_P(SampleTest, EveryFilter_float) { every_filter<float>(); }
TEST_P(SampleTest, EveryFilter_Half) { every_filter<Half>(); }
TEST_P(SampleTest, EveryFilter_BFloat16) { every_filter<BFloat16>(); }

/// As blocks have them that are more than the grid.
TEST_P(SampleTest, SeveralRowsOfABlock) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  Batch<float> batch(5, 300, 0, {1, 0, 1, 0}, [&] { return normal(random); });
  batch.blocks = 2;
  batch.expect_same();
}

TEST_P(SampleTest, TokensAlone) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  Batch<float> batch(3, 40, 0, {1, 0, 1, 0}, [&] { return normal(random); });
  EXPECT_EQ(batch.on_device(0, true).tokens, batch.on_host().tokens);
}

/// Of a row whose elements are as likely as each other, with as many as a thread has several of.
TEST_P(SampleTest, FirstOfEqualsAndTheFloorItself_case24) {
  for (float min_p : {0.0f, 1.0f}) {
    for (float temperature : {0.0f, 1.0f}) {
      Batch<float>(2, 1300, 0, {temperature, 0, 1, min_p}, [] { return 0.5f; }).expect_same();
    }
  }
  const auto greedy = Batch<float>(1, 1300, 0, {0, 0, 1, 0}, [] { return 0.5f; }).on_device(0);
  EXPECT_EQ(greedy.tokens[0], 0);
}

TEST_P(SampleTest, RowsOfSeveralGroups) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const SampleSettings& s : {SampleSettings{1, 0, 1, 0}, SampleSettings{1, 40, 0.9f, 0},
                                  SampleSettings{1, 0, 1, 0.02f}}) {
    Batch<float>(1, 20'000, 0, s, [&] { return normal(random); }).expect_same(0);
  }
}

/// More elements reach the bound than keys fit.
TEST_P(SampleTest, MoreTiesThanKeysFit_case24) {
  for (float top_k : {3.0f, 256.0f, 300.0f}) {
    for (bool keep_ties : {false, true}) {
      int64_t i = 0;
      Batch<float> batch(1, 3000, 0, {1, top_k, 1, 0},
                         [&] { return i++ % 9 ? 1.0f : 2.0f * (i == 1); });
      batch.keep_ties = keep_ties;
      batch.expect_same();
    }
  }
}

TEST_P(SampleTest, RowsWithSettingsOfTheirOwn_case20) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  Batch<float> batch(6, 200, 0, {}, [&] { return normal(random); });
  batch.settings = {{-1, 0, 1, 0},   {1, 5, 1, 0},         {1, 0, 0, 0},
                    {1, 0, 0.5f, 0}, {kInfinity, 0, 1, 0}, {1e-40f, 300, 2, 7}};
  batch.logits[50] = -kInfinity;
  batch.expect_same();
}

TEST_P(SampleTest, NanAndInfinity_case14) {
  for (int64_t count : {5, 700}) {
    Batch<float> batch(6, count, 1, {1, 3, 0.9f, 0}, [] { return -kInfinity; });
    const auto at = [&](int64_t row, int64_t i) -> float& {
      return batch.logits[row * batch.stride + i];
    };
    at(0, 3) = 2;
    at(1, count - 1) = kNan;
    at(1, 2) = 1;
    at(2, 4) = kInfinity;
    at(2, 1) = kInfinity;
    for (int64_t i = 0; i < count; ++i) at(3, i) = kNan;
    at(5, 0) = 0.0f;
    at(5, 1) = -0.0f;
    batch.expect_same();
    const auto got = batch.on_device(0);
    EXPECT_EQ(got.valid, (std::vector<unsigned char>{1, 0, 1, 0, 0, 1}));
    EXPECT_EQ((std::vector<int64_t>(got.tokens.begin(), got.tokens.begin() + 5)),
              (std::vector<int64_t>{3, 2, 1, 0, 0}));
  }
}

TEST_P(SampleTest, NothingToDraw) {
  Batch<float>(0, 9, 0, {1, 0, 1, 0}, [] { return 0.0f; }).expect_same();
}

/// More blocks than are summed at a time. In one schedule: it takes long.
TEST(Sample, RowSummedInSeveralTurns) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  constexpr int64_t kCount = cuda::kSampleKeys * kSampleBlock + 5'000;
  Batch<BFloat16>(1, kCount, 0, {1, 0, 1, 0}, [&] { return normal(random); }).expect_same(0);
}

}  // namespace
}  // namespace aegis::kernels
