#include "core/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "core/errors.h"

namespace aegis {
namespace {

Schedule on_rank(ScheduleOptions options, int64_t rank) {
  options.rank = rank;
  return Schedule(options);
}

/// Positions in the order in which all ranks together deliver them in steps [0, steps). Checks on
/// the way that ranks agree on the number of steps and of samples.
std::vector<int64_t> delivered(const ScheduleOptions& options, int64_t steps) {
  std::vector<int64_t> positions;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t count = on_rank(options, 0).run(step).count;
    EXPECT_GE(count, 1);
    EXPECT_LE(count, options.batch_size);
    EXPECT_TRUE(count == options.batch_size || (step == steps - 1 && !options.drop_last));
    for (int64_t rank = 0; rank < options.world_size; ++rank) {
      const Schedule schedule = on_rank(options, rank);
      EXPECT_GT(schedule.steps(), step);
      const Schedule::Run run = schedule.run(step);
      EXPECT_EQ(run.count, count);
      for (int64_t i = 0; i < run.count; ++i) positions.push_back(run.begin + i);
    }
    EXPECT_EQ(on_rank(options, 0).position_after(step + 1),
              options.start + static_cast<int64_t>(positions.size()));
  }
  return positions;
}

std::vector<int64_t> delivered(const ScheduleOptions& options) {
  return delivered(options, Schedule(options).steps());
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> out(static_cast<size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

/// Calls `f` with every combination of small options.
template <class F>
void for_small_options(F&& f) {
  for (int64_t samples : {0, 1, 2, 5, 10, 12, 23, 24, 25}) {
    for (int64_t batch : {1, 2, 3, 8}) {
      for (int64_t world : {1, 2, 3, 4, 7}) {
        for (bool drop_last : {false, true}) {
          SCOPED_TRACE(testing::Message() << samples << " samples, batches of " << batch << ", "
                                          << world << " ranks, drop_last " << drop_last);
          f(ScheduleOptions{samples, batch, drop_last, 0, world, 0});
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Schedule, RanksTogetherDeliverTheGlobalOrderOnce_case37) {
  for_small_options([](ScheduleOptions options) {
    for (int64_t start : {int64_t{0}, options.samples / 3, options.samples}) {
      options.start = start;
      const std::vector<int64_t> got = delivered(options);
      const int64_t end = start + static_cast<int64_t>(got.size());
      ASSERT_EQ(got, range(start, end));
      const Schedule schedule(options);
      EXPECT_EQ(schedule.position_after(0), start);
      EXPECT_EQ(schedule.position_after(schedule.steps()), end);
      EXPECT_EQ(schedule.dropped(), options.samples - end);
    }
  });
}

TEST(Schedule, EveryRankHasTheSameNumberOfStepsAndOfSamples_case35) {
  for_small_options([](const ScheduleOptions& options) {
    const int64_t steps = Schedule(options).steps();
    for (int64_t rank = 0; rank < options.world_size; ++rank) {
      EXPECT_EQ(on_rank(options, rank).steps(), steps);
    }
    delivered(options);  // checks the samples of each step
  });
}

TEST(Schedule, TenSamplesInPairsOnThreeRanks_case35) {
  const ScheduleOptions options{10, 2, false, 0, 3, 0};
  const Schedule first(options);
  ASSERT_EQ(first.steps(), 2);
  EXPECT_EQ(first.dropped(), 1);
  EXPECT_EQ(first.run(1).begin, 6);
  EXPECT_EQ(first.run(1).count, 1);
  EXPECT_EQ(on_rank(options, 2).run(1).begin, 8);
}

TEST(Schedule, DroppedIsLessThanOneSamplePerRankOrOneStep_case36) {
  for_small_options([](const ScheduleOptions& options) {
    const Schedule schedule(options);
    EXPECT_GE(schedule.dropped(), 0);
    EXPECT_LT(schedule.dropped(),
              options.world_size * (options.drop_last ? options.batch_size : 1));
  });
}

TEST(Schedule, ResumesOnAnotherNumberOfRanksAtAnyStep_case31) {
  for_small_options([](const ScheduleOptions& before) {
    for (int64_t world : {1, 2, 4}) {
      for (int64_t step = 0; step <= Schedule(before).steps(); ++step) {
        ScheduleOptions after = before;
        after.world_size = world;
        after.start = Schedule(before).position_after(step);
        std::vector<int64_t> all = delivered(before, step);
        const std::vector<int64_t> rest = delivered(after);
        all.insert(all.end(), rest.begin(), rest.end());
        ASSERT_EQ(all, range(0, before.samples - Schedule(after).dropped()));
      }
    }
  });
}

TEST(Schedule, ResumingTwiceKeepsTheShuffledOrder_case31) {
  const int64_t samples = 240;
  const uint64_t seed = 11, epoch = 4;
  std::vector<int64_t> all;
  ScheduleOptions options{samples, 3, false, 0, 4, 0};
  for (const auto& [world, steps] : {std::pair<int64_t, int64_t>{4, 5}, {2, 7}, {3, -1}}) {
    options.world_size = world;
    const Schedule schedule(options, seed, epoch);
    const int64_t until = steps < 0 ? schedule.steps() : steps;
    for (int64_t position : delivered(options, until)) all.push_back(schedule.sample(position));
    options.start = schedule.position_after(until);
  }
  const Permutation order(samples, seed, epoch);
  ASSERT_EQ(all.size(), static_cast<size_t>(samples));
  for (int64_t i = 0; i < samples; ++i) {
    EXPECT_EQ(all[static_cast<size_t>(i)], static_cast<int64_t>(order(static_cast<uint64_t>(i))));
  }
}

TEST(Schedule, ShuffledRanksAreDisjointAndCoverTheEpoch_case37) {
  const ScheduleOptions options{96, 4, false, 0, 3, 0};
  std::set<int64_t> seen;
  for (int64_t rank = 0; rank < 3; ++rank) {
    ScheduleOptions mine = options;
    mine.rank = rank;
    const Schedule schedule(mine, 9, 2);
    for (int64_t step = 0; step < schedule.steps(); ++step) {
      const Schedule::Run run = schedule.run(step);
      for (int64_t i = 0; i < run.count; ++i) {
        EXPECT_TRUE(seen.insert(schedule.sample(run.begin + i)).second);
      }
    }
  }
  EXPECT_EQ(seen.size(), 96u);
}

TEST(Schedule, WithoutASeedSamplesComeInFileOrder_case41) {
  const Schedule schedule({100, 10});
  for (int64_t position = 0; position < 100; ++position) {
    EXPECT_EQ(schedule.sample(position), position);
  }
}

TEST(Schedule, SeeksAndShufflesTrillionsOfSamples_case28_case56) {
  const int64_t samples = 3'000'000'000'000;
  const Schedule schedule({samples, 512, false, 5, 64, samples / 2}, 1, 2);
  EXPECT_EQ(schedule.steps(), (samples / 2 + 512 * 64 - 1) / (512 * 64));
  const Schedule::Run run = schedule.run(10'000'000);
  EXPECT_EQ(run.begin, samples / 2 + int64_t{10'000'000} * 512 * 64 + 5 * 512);
  EXPECT_EQ(schedule.sample(run.begin),
            static_cast<int64_t>(Permutation(samples, 1, 2)(static_cast<uint64_t>(run.begin))));
}

TEST(Schedule, LargestNumbersDoNotOverflow_case48) {
  constexpr int64_t kMax = INT64_MAX;
  {
    const Schedule schedule({kMax, 1});
    EXPECT_EQ(schedule.steps(), kMax);
    EXPECT_EQ(schedule.run(kMax - 1).begin, kMax - 1);
    EXPECT_EQ(schedule.position_after(kMax), kMax);
  }
  {
    const Schedule schedule({kMax, kMax});
    EXPECT_EQ(schedule.steps(), 1);
    EXPECT_EQ(schedule.run(0).count, kMax);
  }
  {
    const int64_t half = kMax / 2;  // 2 * half = kMax - 1: one sample is left over
    const Schedule schedule({kMax, half, false, 1, 2, 0}, 1, 1);
    EXPECT_EQ(schedule.steps(), 1);
    EXPECT_EQ(schedule.dropped(), 1);
    EXPECT_EQ(schedule.run(0).begin, half);
    EXPECT_LT(static_cast<uint64_t>(schedule.sample(kMax - 1)), static_cast<uint64_t>(kMax));
  }
  {
    const Schedule schedule({kMax, 1, false, kMax - 1, kMax, 0});
    EXPECT_EQ(schedule.run(0).begin, kMax - 1);
  }
  {
    const Schedule schedule({5, kMax / 4, false, 3, 4, 0});
    ASSERT_EQ(schedule.steps(), 1);
    EXPECT_EQ(schedule.run(0).begin, 3);
    EXPECT_EQ(schedule.run(0).count, 1);
    EXPECT_EQ(schedule.dropped(), 1);
  }
}

TEST(Schedule, AnEmptyEpochHasNoSteps) {
  for (const ScheduleOptions& options :
       {ScheduleOptions{0, 4}, ScheduleOptions{8, 4, false, 0, 1, 8}, ScheduleOptions{3, 4, true},
        ScheduleOptions{3, 4, false, 0, 4, 0}}) {
    EXPECT_EQ(Schedule(options, 1, 1).steps(), 0);
    EXPECT_EQ(Schedule(options, 1, 1).dropped(), options.samples - options.start);
  }
}

TEST(Schedule, WrongOptionsAreNamed) {
  const auto error = [](const ScheduleOptions& options) {
    return message_of<std::invalid_argument>([&] { Schedule(options, 1, 1); });
  };
  EXPECT_EQ(error({-1, 1}), "samples: expected at least 0, got -1");
  EXPECT_EQ(error({1, 0}), "batch_size: expected at least 1, got 0");
  EXPECT_EQ(error({1, 1, false, 0, 0, 0}), "world_size: expected at least 1, got 0");
  EXPECT_EQ(error({1, 1, false, 2, 2, 0}), "rank: expected 0 to 1, got 2");
  EXPECT_EQ(error({1, 1, false, -1, 2, 0}), "rank: expected 0 to 1, got -1");
  EXPECT_EQ(error({9, 1, false, 0, 1, -1}), "start: expected 0 to 9, got -1");
  EXPECT_EQ(error({9, 1, false, 0, 1, 10}), "start: expected 0 to 9, got 10");
  EXPECT_EQ(error({1, INT64_MAX / 2 + 1, false, 0, 2, 0}),
            "batch_size: expected batch_size * world_size below 2^63, got 4611686018427387904 * 2");
}

}  // namespace
}  // namespace aegis
