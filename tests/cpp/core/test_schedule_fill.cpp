#include <gtest/gtest.h>

#include "core/schedule.h"
#include "fake_filler.h"
#include "temp_file.h"

namespace aegis {
namespace {

TEST(ScheduleFill, CompletesTheLastStepOnEveryRank_case35_case36) {
  for (const Fill fill : {Fill::pad, Fill::wrap}) {
    for (int64_t samples = 1; samples < 30; ++samples) {
      for (const int64_t world : {1, 2, 3, 4}) {
        for (const int64_t start : {int64_t{0}, samples / 2, samples}) {
          ScheduleOptions options{samples, 3, false, 0, world, start, fill};
          std::vector<int64_t> got;
          for (int64_t step = 0; step < Schedule(options).steps(); ++step) {
            for (options.rank = 0; options.rank < world; ++options.rank) {
              const Schedule schedule(options);
              const Schedule::Run run = schedule.run(step);
              ASSERT_EQ(run.count, 3);
              for (int64_t i = 0; i < 3; ++i) got.push_back(schedule.sample(run.begin + i));
            }
            options.rank = 0;
          }
          const Schedule schedule(options);
          ASSERT_EQ(schedule.dropped(), 0);
          ASSERT_EQ(schedule.position_after(schedule.steps()), samples);
          ASSERT_EQ(static_cast<int64_t>(got.size()),
                    (samples - start + 3 * world - 1) / (3 * world) * 3 * world);
          for (size_t i = 0; i < got.size(); ++i) {
            const int64_t position = start + static_cast<int64_t>(i);
            const int64_t beyond = fill == Fill::pad ? kPadding : position % samples;
            ASSERT_EQ(got[i], position < samples ? position : beyond);
          }
        }
      }
    }
  }
}

TEST(ScheduleFill, WrongOptionsAreNamed) {
  const auto error = [](const ScheduleOptions& options) {
    return message_of<std::invalid_argument>([&] { Schedule schedule(options); });
  };
  EXPECT_EQ(error({5, 2, true, 0, 1, 0, Fill::pad}),
            "drop_last: expected false where the last step is filled up");
  EXPECT_TRUE(contains(error({INT64_MAX, 2, false, 0, 1, 0, Fill::wrap}),
                       "samples: expected samples + batch_size * world_size below 2^63"));
  FakeFeed feed(5, {0, 1});
  EXPECT_TRUE(contains(message_of<std::invalid_argument>(
                           [&] { feed->follow(Schedule({5, 2, false, 0, 1, 0, Fill::pad})); }),
                       "expected no padding"));
}

}  // namespace
}  // namespace aegis
