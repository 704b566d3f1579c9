// The CUDA kernel and its launcher against the scalar version: the same probabilities, to the bit.
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/token_probabilities.cu"
#include "kernels/token_probabilities_cpu.h"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::kernels {

namespace scalar {
template <class Element>
const SampleScans<Element>& sample_scans();
template <class Element>
ShareScan<Element> share_scan();
}  // namespace scalar

namespace {

using simt::DeviceBuffer;

class TokenProbabilitiesTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(TokenProbabilitiesTest);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kOutGap = 2;

template <class Element>
struct Batch {
  int64_t rows, count, stride;
  std::vector<Element> scores;
  std::vector<SampleSettings> settings;
  bool keep_ties = false;
  unsigned blocks = 0;  // 0: as many as the launcher has

  template <class Value>
  Batch(int64_t rows, int64_t count, int64_t gap, SampleSettings all, Value&& value)
      : rows(rows), count(count), stride(count + gap), settings{all} {
    scores.assign(rows * stride, from_float<Element>(kNan));
    for (int64_t i = 0; i < rows * count; ++i) {
      scores[i / count * stride + i % count] = from_float<Element>(value());
    }
  }

  TokenProbabilities<Element> job(const Element* in, const SampleSettings* options,
                                  float* out) const {
    return {in, stride, count, options, settings.size() > 1, keep_ties, out, count + kOutGap};
  }

  /// All of the result's memory; what lies between its rows is left as it was.
  std::vector<float> on_device() const {
    DeviceBuffer<Element> in("scores", scores, 1);
    DeviceBuffer<SampleSettings> options("settings", settings);
    DeviceBuffer<float> out("out", std::vector<float>(rows * (count + kOutGap), -7));
    const auto on_device = job(in.data(), options.data(), out.data());
    if (blocks == 0) {
      cuda::launch_token_probabilities(on_device, rows, nullptr);
    } else {
      cuda::launch("token_probabilities", cuda::token_probabilities<Element>, blocks,
                   cuda::kSampleThreads, 0, nullptr, on_device, rows);
    }
    return out.values();
  }
  std::vector<float> on_host() const {
    std::vector<float> out(rows * (count + kOutGap), -7);
    SampleScratch scratch;
    write_rows<Element>(scalar::sample_scans<Element>(), scalar::share_scan<Element>(), scratch,
                        job(scores.data(), settings.data(), out.data()), 0, rows);
    return out;
  }

  void expect_same() const {
    const SampleSettings& s = settings[0];
    EXPECT_EQ(on_device(), on_host())
        << rows << " rows of " << count << ", temperature " << s.temperature << ", top_k "
        << s.top_k << ", top_p " << s.top_p << ", min_p " << s.min_p << ", ties " << keep_ties;
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

TEST_P(TokenProbabilitiesTest, EveryFilter_float) { every_filter<float>(); }
TEST_P(TokenProbabilitiesTest, EveryFilter_Half) { every_filter<Half>(); }
TEST_P(TokenProbabilitiesTest, EveryFilter_BFloat16) { every_filter<BFloat16>(); }

/// Ties that end in a group, block and element that is not the first.
TEST_P(TokenProbabilitiesTest, TiesEndAnywhere_case24) {
  for (float top_k : {300.0f, 7500.0f}) {
    int64_t i = 0;
    Batch<float> batch(1, 8500, 0, {1, top_k, 1, 0}, [&] { return i++ % 9 ? 1.0f : 0.0f; });
    batch.expect_same();
  }
}

/// As blocks have them that are more than the grid.
TEST_P(TokenProbabilitiesTest, SeveralRowsOfABlock) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  Batch<float> batch(5, 300, 0, {1, 0, 1, 0}, [&] { return normal(random); });
  batch.blocks = 2;
  batch.expect_same();
}

TEST_P(TokenProbabilitiesTest, TheLeastWeight) {
  int64_t i = 0;
  Batch<float>(1, 7, 0, {1, 0, 1, 0}, [&] { return i++ / -6.0f * 69.3f; }).expect_same();
}

/// Of a row that is not listed, and whose elements all lie exactly at the floor.
TEST_P(TokenProbabilitiesTest, TheFloorItself) {
  Batch<float>(2, 700, 0, {1, 0, 1, 1}, [] { return 0.5f; }).expect_same();
}

TEST_P(TokenProbabilitiesTest, RowsOfEveryKind_case14_case20) {
  for (int64_t count : {5, 700}) {
    Batch<float> batch(7, count, 1, {}, [] { return 0.5f; });
    batch.settings = {{-1, 0, 1, 0},       {1, 3, 0.9f, 0}, {1, 0, 0, 0}, {kInfinity, 0, 1, 0},
                      {1e-40f, 300, 2, 7}, {1, 0, 1, 0},    {1, 2, 1, 0}};
    const auto at = [&](int64_t row, int64_t i) -> float& {
      return batch.scores[row * batch.stride + i];
    };
    at(0, 3) = 2;
    at(1, count - 1) = kNan;
    at(2, 4) = at(2, 1) = kInfinity;
    at(3, 0) = -kInfinity;
    at(4, 0) = -0.0f;
    for (int64_t i = 0; i < count; ++i) at(5, i) = -kInfinity;
    for (int64_t i = 0; i < count; ++i) at(6, i) = kNan;
    batch.expect_same();
  }
}

TEST_P(TokenProbabilitiesTest, NothingToWrite) {
  Batch<float>(0, 9, 0, {1, 0, 1, 0}, [] { return 0.0f; }).expect_same();
}

}  // namespace
}  // namespace aegis::kernels
