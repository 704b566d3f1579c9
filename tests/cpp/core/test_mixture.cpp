#include "core/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "temp_file.h"

namespace aegis {
namespace {

std::shared_ptr<const MixtureRound> make_round(const std::vector<int64_t>& weights) {
  return std::make_shared<MixtureRound>(weights);
}

TEST(MixtureRound, KeepsEverySourceWithinOneSampleOfItsShare) {
  std::mt19937 random(1);
  for (const size_t sources : {1, 2, 3, 5, 20, 100}) {
    std::vector<int64_t> weights(sources);
    for (int64_t& weight : weights) weight = 1 + static_cast<int64_t>(random() % 200);
    const MixtureRound round(weights);
    std::vector<int64_t> had(sources);
    for (int64_t n = 0; n < 2 * round.length(); ++n) {
      const auto [source, before] = round.at(n);
      ASSERT_EQ(before, had[source]);
      ASSERT_EQ(round.position_of(source, before), n);
      ASSERT_EQ(round.count(source, n), before);
      ++had[source];
      for (size_t i = 0; i < sources; ++i) {
        ASSERT_LT(std::abs(had[i] * round.length() - (n + 1) * weights[i]), round.length());
      }
    }
  }
}

TEST(MixtureRound, IsFoundAnywhereAtOnce_case28) {
  const MixtureRound round({7, 2, 1});
  const int64_t far = int64_t{1} << 60;
  const auto [source, before] = round.at(far);
  EXPECT_EQ(round.position_of(source, before), far);
  EXPECT_EQ(round.count(0, far) + round.count(1, far) + round.count(2, far), far);
  EXPECT_EQ(round.position_of(2, INT64_MAX), INT64_MAX);
}

TEST(MixtureRound, BadWeightsAreNamed) {
  const auto error = [](const std::vector<int64_t>& weights) {
    return message_of<std::invalid_argument>([&] { MixtureRound round(weights); });
  };
  EXPECT_TRUE(contains(error({}), "weights: expected 1 to 65536, got 0"));
  EXPECT_TRUE(contains(error({1, 0}), "weights: expected at least 1"));
  EXPECT_TRUE(contains(error({1, -5}), "got -5"));
  EXPECT_TRUE(contains(error({1, MixtureRound::kLongest}), "1048576 together, got 1048576"));
  EXPECT_TRUE(contains(error({INT64_MAX, INT64_MAX}), "weights: expected"));
  EXPECT_EQ(MixtureRound({MixtureRound::kLongest}).length(), MixtureRound::kLongest);
}

TEST(MixtureOrder, GoesThroughEverySourceBeforeItComesAgain) {
  const std::vector<MixtureOrder::Source> sources{{10, 0, 0}, {7, 0, 0}};
  const MixtureOrder order(make_round({1, 1}), sources, 0, 5, true);
  std::vector<std::vector<int64_t>> seen(2);
  for (int64_t p = 0; p < 140; ++p) {
    const int64_t sample = order.sample(p);
    seen[sample >= 10].push_back(sample);
  }
  for (const auto& [begin, samples, own] : {std::tuple{0, 10, seen[0]}, {10, 7, seen[1]}}) {
    std::set<std::vector<int64_t>> orders;
    for (size_t pass = 0; pass < own.size() / static_cast<size_t>(samples); ++pass) {
      const auto from = own.begin() + static_cast<int64_t>(pass) * samples;
      std::vector<int64_t> once(from, from + samples);
      orders.insert(once);
      std::sort(once.begin(), once.end());
      std::vector<int64_t> all(static_cast<size_t>(samples));
      std::iota(all.begin(), all.end(), begin);
      ASSERT_EQ(once, all);
    }
    EXPECT_GT(orders.size(), 3u);
  }
}

TEST(MixtureOrder, GoesOnFromAnyPositionAsItWas_case31) {
  const auto round = make_round({3, 1, 2});
  const MixtureOrder whole(round, {{11, 0, 0}, {5, 0, 0}, {8, 0, 0}}, 0, 9, true);
  for (const int64_t phase : {1, 7, 50, 1000}) {
    std::vector<MixtureOrder::Source> sources{{11, 0, 0}, {5, 0, 0}, {8, 0, 0}};
    for (size_t i = 0; i < 3; ++i) {
      sources[i].pass = round->count(i, phase) / sources[i].samples;
      sources[i].begin = round->count(i, phase) % sources[i].samples;
    }
    const MixtureOrder rest(round, sources, phase, 9, true);
    for (int64_t p = 0; p < 60; ++p) ASSERT_EQ(rest.sample(p), whole.sample(phase + p));
  }
}

TEST(MixtureOrder, BadSourcesAreNamed) {
  const auto error = [](std::vector<MixtureOrder::Source> sources) {
    return message_of<std::invalid_argument>(
        [&] { MixtureOrder(make_round({1, 1}), std::move(sources), 0, 1, true); });
  };
  EXPECT_TRUE(contains(error({{1, 0, 0}}), "sources: expected one for each of 2 weights, got 1"));
  EXPECT_TRUE(contains(error({{1, 0, 0}, {0, 0, 0}}), "expected at least 1 sample in source 1"));
  EXPECT_TRUE(
      contains(error({{1, 0, 0}, {3, 0, 4}}), "expected begin 0 to 3 of a pass in source 1"));
}

TEST(MixtureOrder, IsNotEnteredBeforeItBegins) {
  const auto round = std::make_shared<const MixtureRound>(std::vector<int64_t>{1, 2});
  const std::vector<MixtureOrder::Source> sources{{5, 0, 1}, {7, 0, 2}};
  const auto order = std::make_shared<const MixtureOrder>(round, sources, -40, 1, true);
  EXPECT_EQ(order->begin(), 40);
  ScheduleOptions options{.samples = 100, .batch_size = 3, .start = 39};
  EXPECT_THROW(Schedule(options, order), std::invalid_argument);
  options.start = 40;
  const Schedule schedule(options, order);
  for (int64_t position = 40; position < 100; ++position) {
    EXPECT_LT(schedule.sample(position), order->end());
  }
  EXPECT_EQ(MixtureOrder(round, sources, 3, 1, true).begin(), 0);
}

}  // namespace
}  // namespace aegis
