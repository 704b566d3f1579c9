// What a feeder delivers: order, errors, bounds, schedules. Waiting and ending are tested in
// test_feeder_waits.cpp, allocations in test_feeder_allocations.cpp.
#include "core/feeder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "core/errors.h"
#include "core/fake_filler.h"

namespace aegis {
namespace {

using Samples = std::vector<int64_t>;

class FeederOnThreads : public testing::TestWithParam<int> {
 protected:
  int threads() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Threads, FeederOnThreads, testing::Values(0, 1, 2, 3, 8),
                         testing::PrintToStringParamName());

TEST_P(FeederOnThreads, BatchesComeInTheOrderAskedFor_case34) {
  for (int depth : {1, 2, 3, 8}) {
    FakeFeed feed(100'000, {threads(), depth}, [](const int64_t* indices, int64_t count) {
      // Uneven work, now and then longer than a feeder spins before it sleeps.
      std::minstd_rand random(static_cast<unsigned>(count > 0 ? indices[0] + 1 : 1));
      busy(random() % 50 == 0 ? 300'000 : random() % 5000);
    });
    std::minstd_rand random(static_cast<unsigned>(depth));
    std::vector<Samples> asked;
    size_t taken = 0;
    while (taken < 300) {
      while (asked.size() < 300 && !feed->full()) {
        Samples batch(random() % 20);
        for (int64_t& sample : batch) sample = static_cast<int64_t>(random() % 100'000);
        feed.submit(batch);
        asked.push_back(batch);
      }
      const int turns = static_cast<int>(random() % static_cast<unsigned>(depth)) + 1;
      for (int i = 0; i < turns && feed->outstanding() > 0; ++i) {
        const Batch batch = feed->take();
        ASSERT_EQ(samples_of(batch), asked[taken]);
        ++taken;
      }
    }
    EXPECT_EQ(feed->stats().batches, 300);
  }
}

TEST_P(FeederOnThreads, AnErrorComesInItsTurnAndIterationGoesOn_case6) {
  FakeFeed feed(1000, {threads(), 4}, [](const int64_t* indices, int64_t) {
    if (indices[0] % 3 == 1) throw std::domain_error("bad " + std::to_string(indices[0]));
  });
  int64_t next = 0;
  for (int64_t turn = 0; turn < 100; ++turn) {
    while (!feed->full()) feed.submit({next++, 5});
    if (turn % 3 == 1) {
      EXPECT_EQ(message_of<std::domain_error>([&] { feed->take(); }),
                "bad " + std::to_string(turn));
    } else {
      EXPECT_EQ(samples_of(feed->take()), (Samples{turn, 5}));
    }
  }
  EXPECT_EQ(feed->stats().batches, 100);
  EXPECT_EQ(feed->stats().samples, 2 * 67);
  feed.feeder.reset();
  EXPECT_EQ(feed.pool->stats().held, 0) << "failed batches keep their slots";
}

TEST_P(FeederOnThreads, SamplesOutsideTheDataSetAreReportedInTheirTurn) {
  FakeFeed feed(10, {threads(), 5});
  feed.submit({9, 0});
  feed.submit({3, 10});
  feed.submit({-11});
  feed.submit({INT64_MIN});
  feed.submit({INT64_MAX});
  EXPECT_EQ(samples_of(feed->take()), (Samples{9, 0}));
  for (const char* got : {"10", "-11", "-9223372036854775808", "9223372036854775807"}) {
    EXPECT_EQ(message_of<std::out_of_range>([&] { feed->take(); }),
              std::string("index: expected -10 to 9, got ") + got);
  }
  feed.submit({4});
  EXPECT_EQ(samples_of(feed->take()), (Samples{4}));
  EXPECT_EQ(feed.filler->fills(), 2) << "a filler saw a sample that is not there";
}

TEST_P(FeederOnThreads, NegativeNumbersCountFromTheEnd) {
  FakeFeed feed(10, {threads(), 1});
  feed.submit({-1, 0, -10, 9});
  EXPECT_EQ(samples_of(feed->take()), (Samples{9, 0, 0, 9}));
}

TEST_P(FeederOnThreads, AtMostDepthBatchesAreOutstanding) {
  FakeFeed feed(10, {threads(), 3});
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(feed->full());
    feed.submit({i});
  }
  EXPECT_TRUE(feed->full());
  EXPECT_EQ(message_of<std::length_error>([&] { feed.submit({9}); }),
            "submit: expected fewer than 3 outstanding batches, got 3");
  EXPECT_EQ(feed->outstanding(), 3);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(samples_of(feed->take()), (Samples{i}));
  EXPECT_EQ(message_of<std::out_of_range>([&] { feed->take(); }),
            "take: expected an outstanding batch, got none");
}

TEST_P(FeederOnThreads, FillersRunAtMostDepthBatchesAhead_case30) {
  FakeFeed feed(1000, {threads(), 4});
  feed->follow(Schedule({1000, 1}));
  for (int taken = 1; taken <= 200; ++taken) {
    feed->take();
    EXPECT_LE(feed.filler->fills(), taken + 4);
    EXPECT_LE(feed->outstanding(), 4);
  }
  if (threads() == 0) {
    EXPECT_EQ(feed.filler->fills(), 200);
  }
}

TEST_P(FeederOnThreads, EmptyBatchesAreBatches) {
  FakeFeed feed(10, {threads(), 2});
  feed.submit({});
  EXPECT_EQ(feed->take().count, 0);
}

TEST_P(FeederOnThreads, FollowsASchedule) {
  const uint64_t seed = 3, epoch = 8;
  FakeFeed feed(103, {threads(), 4});
  const Schedule schedule({103, 10, false, 1, 2, 7}, seed, epoch);
  feed->follow(schedule);
  for (int64_t step = 0; step < schedule.steps(); ++step) {
    const Schedule::Run run = schedule.run(step);
    Samples expected;
    for (int64_t i = 0; i < run.count; ++i) expected.push_back(schedule.sample(run.begin + i));
    EXPECT_EQ(feed->outstanding(), std::min<int64_t>(4, schedule.steps() - step));
    ASSERT_EQ(samples_of(feed->take()), expected);
  }
  EXPECT_EQ(feed->outstanding(), 0);
  EXPECT_THROW(feed->take(), std::out_of_range);
}

TEST_P(FeederOnThreads, AnErrorDoesNotEndASchedule) {
  FakeFeed feed(50, {threads(), 3}, [](const int64_t* indices, int64_t) {
    if (indices[0] == 20) throw std::domain_error("20");
  });
  feed->follow(Schedule({50, 10}));
  for (int64_t first : {0, 10, 20, 30, 40}) {
    if (first == 20) {
      EXPECT_THROW(feed->take(), std::domain_error);
    } else {
      EXPECT_EQ(samples_of(feed->take())[0], first);
    }
  }
}

TEST_P(FeederOnThreads, SchedulesAreFollowedOnceAndAlone) {
  FakeFeed feed(10, {threads(), 2});
  feed->follow(Schedule({10, 1}));
  EXPECT_THROW(feed->follow(Schedule({10, 1})), std::logic_error);
  EXPECT_THROW(feed.submit({1}), std::logic_error);
  FakeFeed other(10, {threads(), 2});
  other.submit({1});
  EXPECT_THROW(other->follow(Schedule({10, 1})), std::logic_error);
  EXPECT_EQ(samples_of(other->take()), (Samples{1}));
}

TEST_P(FeederOnThreads, AScheduleOfMoreSamplesThanThereAreIsRefused) {
  FakeFeed feed(10, {threads(), 2});
  EXPECT_EQ(message_of<std::invalid_argument>([&] { feed->follow(Schedule({11, 1})); }),
            "schedule: expected at most 10 samples, got 11");
  EXPECT_EQ(feed->outstanding(), 0);
  feed->follow(Schedule({9, 9}));
  EXPECT_EQ(feed->take().count, 9);
}

TEST_P(FeederOnThreads, FillsTheCallersMemory) {
  FakeFeed feed(100, {threads(), 2});
  std::vector<int64_t> numbers(4);
  std::vector<std::byte> bytes(12);
  const FieldPointers memory{reinterpret_cast<std::byte*>(numbers.data()), bytes.data()};
  const Samples own{5, -1, 7, 8}, pooled{1, 2};
  for (int round = 0; round < 3; ++round) {  // both kinds use both jobs of the ring
    feed->submit(own.data(), 4, &memory);
    feed.submit(pooled);
    const Batch first = feed->take();
    EXPECT_FALSE(first.lease);
    EXPECT_EQ(first.fields, memory);
    EXPECT_EQ(samples_of(first), (Samples{5, 99, 7, 8}));
    EXPECT_EQ(numbers, (Samples{5, 99, 7, 8}));
    const Batch second = feed->take();
    EXPECT_TRUE(second.lease);
    EXPECT_EQ(samples_of(second), pooled);
    if (round == 0) feed.submit({3}), feed->take();
  }
}

TEST_P(FeederOnThreads, HeldBatchesKeepTheirContents_case59) {
  FakeFeed feed(1000, {threads(), 3});
  feed->follow(Schedule({1000, 10}));
  std::vector<Batch> held;
  for (int i = 0; i < 100; ++i) held.push_back(feed->take());
  feed.feeder.reset();
  feed.pool.reset();
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(samples_of(held[static_cast<size_t>(i)])[9], 10 * i + 9);
  }
}

TEST_P(FeederOnThreads, BatchesLargerThanASlotGetLargerSlots) {
  FakeFeed feed(100'000, {threads(), 2});
  Samples large(5000);
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<int64_t>(i * 7);
  feed.submit(large);
  feed.submit({1});
  EXPECT_EQ(samples_of(feed->take()), large);
  EXPECT_EQ(samples_of(feed->take()), (Samples{1}));
}

TEST_P(FeederOnThreads, CountsWhatItDid) {
  FakeFeed feed(100, {threads(), 2});
  feed.submit({1, 2, 3});
  feed.submit({4});
  feed->take();
  EXPECT_TRUE(feed->wait_ready(std::chrono::hours(1)));
  const Feeder::Stats stats = feed->stats();
  EXPECT_EQ(stats.batches, 1);
  EXPECT_EQ(stats.samples, 3);
  EXPECT_EQ(stats.ready, threads() > 0 ? 1 : 0);
  EXPECT_GT(stats.fill_ns, 0);
  EXPECT_EQ(stats.native_allocations, 0) << "lists that grew before warm-up ended are counted";
}

TEST_P(FeederOnThreads, AnyThreadMayAskForTheCounters) {
  constexpr int64_t kBatches = 500;
  FakeFeed feed(16 * kBatches, {threads(), 2});
  feed->follow(Schedule({16 * kBatches, 16}));
  std::atomic<bool> ended{false};
  std::thread other([&] {
    for (int64_t before = 0; !ended.load();) {
      const Feeder::Stats stats = feed->stats();
      EXPECT_GE(stats.batches, before);
      before = stats.batches;
    }
  });
  for (int64_t i = 0; i < kBatches; ++i) feed->take();
  ended.store(true);
  other.join();
  EXPECT_EQ(feed->stats().samples, 16 * kBatches);
}

TEST(Feeder, BadOptionsAreNamed) {
  const auto filler = std::make_shared<FakeFiller>(1);
  const auto pool = SlotPool::make(64, 0);
  const auto error = [&](auto f, auto p, FeederOptions options) {
    return message_of<std::invalid_argument>([&] { Feeder(f, p, options); });
  };
  EXPECT_EQ(error(filler, pool, {-1, 1}), "threads: expected at least 0, got -1");
  EXPECT_EQ(error(filler, pool, {1, 0}), "depth: expected at least 1, got 0");
  EXPECT_EQ(error(filler, pool, {1, INT32_MIN}), "depth: expected at least 1, got -2147483648");
  EXPECT_EQ(error(nullptr, pool, {}), "filler: expected a filler, got null");
  EXPECT_EQ(error(filler, nullptr, {}), "pool: expected a pool, got null");
  Feeder feeder(filler, pool, {});
  EXPECT_EQ(message_of<std::invalid_argument>([&] { feeder.submit(nullptr, -1); }),
            "count: expected at least 0, got -1");
  EXPECT_EQ(feeder.outstanding(), 0);
}

}  // namespace
}  // namespace aegis
