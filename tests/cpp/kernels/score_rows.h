// Rows of scores, settings, and what a token is then drawn from, in float64: for the tests of
// sample and of token_probabilities.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/sample.h"

namespace aegis::kernels {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline constexpr SampleSettings kEverySetting[] = {
    {1, 0, 1, 0},   {0.5f, 0, 1, 0.1f},   {2, 3, 1, 0},       {1, 50, 0.9f, 0}, {1, 256, 0.5f, 0},
    {1, 300, 1, 0}, {1, 300, 0.7f, 0.1f}, {1, 0, 0.9f, 0},    {3, 0, 0.99f, 0}, {0, 0, 1, 0},
    {1, 5, 0, 0},   {1e30f, 0, 0.3f, 0},  {1e-42f, 40, 1, 0}, {1, 1, 1, 0},
};

/// Rows between and around which there is +infinity: a row that reads it takes it.
template <class Element>
struct ScoreRows {
  int64_t rows, count, stride;
  std::vector<Element> scores;
  SampleSettings settings{1, 0, 1, 0};
  bool keep_ties = false;

  template <class Value>
  ScoreRows(int64_t rows, int64_t count, Value&& value)
      : rows(rows), count(count), stride(count + 1 + count % 3) {
    scores.assign(1 + rows * stride + 64, from_float<Element>(kInfinity));
    for (int64_t i = 0; i < rows * count; ++i) {
      at(i / count, i % count) = from_float<Element>(value());
    }
  }

  const Element* data() const { return scores.data() + 1; }
  Element& at(int64_t row, int64_t i) { return scores[1 + row * stride + i]; }
  float value(int64_t row, int64_t i) { return to_float(at(row, i)); }

  std::vector<int64_t> descending(int64_t row) {
    std::vector<int64_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return value(row, a) > value(row, b); });
    return order;
  }

  /// The probability of each token, by a full sort.
  std::vector<double> law(int64_t row) {
    const SampleSettings& s = settings;
    const std::vector<int64_t> order = descending(row);
    const auto sorted = [&](size_t i) { return double{value(row, order[i])}; };
    size_t kept = order.size();
    if (s.top_k >= 1 && s.top_k < static_cast<double>(count)) {
      kept = static_cast<size_t>(s.top_k);
      while (keep_ties && kept < order.size() && sorted(kept) == sorted(kept - 1)) ++kept;
    }
    std::vector<double> weights;
    for (size_t i = 0; i < kept; ++i) {
      weights.push_back(std::exp((sorted(i) - sorted(0)) / s.temperature));
    }
    double all = std::accumulate(weights.begin(), weights.end(), 0.0), sum = 0;
    if (s.top_p < 1) {
      size_t n = 0;
      while (sum < s.top_p * all) sum += weights[n++];
      weights.resize(n);
    }
    while (weights.back() < s.min_p) weights.pop_back();
    all = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<double> law(count);
    for (size_t i = 0; i < weights.size(); ++i) law[order[i]] = weights[i] / all;
    return law;
  }
};

template <class Batch, class Check>
void with_every_setting(Batch& batch, Check&& check) {
  for (const SampleSettings& settings : kEverySetting) {
    batch.settings = settings;
    batch.keep_ties = !batch.keep_ties;
    check(batch);
  }
}

template <class Batch, class Check>
void of_every_width(Check&& check) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t count = 1; count < 12'000; count += count < 70 ? 1 : count / 3 + 1) {
    Batch batch(2, count, [&] { return 2 * normal(random); });
    with_every_setting(batch, check);
  }
}

template <class Batch, class Check>
void of_every_kind_of_number(Check&& check) {
  const float kinds[] = {kNan, kInfinity, -kInfinity, 0, -0.0f, 1e-45f, -1e-40f,
                         1,    1,         -1,         2, 6e4f,  -6e4f};
  std::mt19937 random(2);
  for (int round = 0; round < 60; ++round) {
    const unsigned from = round % 3 == 0 ? 0 : round % 3 == 1 ? 1 : 2;  // without NaN, infinity
    const int64_t count = 1 + random() % 1500;
    Batch batch(3, count, [&] {
      return random() % 50 ? 1.0f : kinds[from + random() % (std::size(kinds) - from)];
    });
    batch.keep_ties = random() % 2;
    with_every_setting(batch, check);
  }
}

/// Settings under which every row of finite scores has the law above.
template <class Batch, class Check>
void of_the_law(Check&& check) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (int64_t count : {3, 40, 1000, 5000}) {
    const float spread = count < 1000 ? 1 : 0.5f + static_cast<float>(count) / 2000;
    Batch batch(1, count, [&] { return spread * normal(random); });
    with_every_setting(batch, [&](Batch& one) {
      if (one.settings.temperature > 1e-40f && one.settings.top_p > 0) check(one);
    });
  }
}

}  // namespace aegis::kernels
