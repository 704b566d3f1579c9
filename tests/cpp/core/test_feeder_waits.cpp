// How a feeder waits, wakes, ends and meets fork().
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "core/child.h"
#include "core/errors.h"
#include "core/fake_filler.h"
#include "core/feeder.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlower = 10;
#else
constexpr int kSlower = 1;
#endif

namespace aegis {
namespace {

using namespace std::chrono_literals;

// Longer than any test may take: a wake-up that is lost shows as a test that does not end, which
// CTest ends.
constexpr auto kForEver = 24h;

constexpr unsigned kTwoSpins = 300'000;  // cycles: about twice the 50 µs that a feeder spins

TEST(FeederWaits, WaitReadyKeepsToItsLimit_case10) {
  std::latch gate(1);
  FakeFeed feed(10, {1, 1}, [&](const int64_t*, int64_t) { gate.wait(); });
  feed.submit({1});
  EXPECT_FALSE(feed->ready());
  EXPECT_FALSE(feed->wait_ready(20ms));
  EXPECT_FALSE(feed->wait_ready(10us));
  EXPECT_FALSE(feed->wait_ready(0ns));
  EXPECT_FALSE(feed->wait_ready(-1s));
  EXPECT_EQ(feed->stats().waits, 1) << "one batch was waited for, however often it was looked at";
  EXPECT_GE(feed->stats().wait_ns, 20'000'000);
  gate.count_down();
  EXPECT_TRUE(feed->wait_ready(kForEver));
  EXPECT_TRUE(feed->ready());
  EXPECT_EQ(samples_of(feed->take()), std::vector<int64_t>{1});
}

TEST(FeederWaits, TheLongestLimitDoesNotOverflow) {
  std::latch filling(1), gate(1);
  FakeFeed feed(10, {1, 1}, [&](const int64_t*, int64_t) {
    filling.count_down();
    gate.wait();
  });
  feed.submit({1});
  filling.wait();
  std::thread opener([&] {
    busy(8 * kTwoSpins);  // let the consumer fall asleep; a longer turn does no harm
    gate.count_down();
  });
  EXPECT_TRUE(feed->wait_ready(std::chrono::nanoseconds::max()));
  opener.join();
}

TEST(FeederWaits, AQuickBatchThatNobodyBeganIsFilledByTheConsumer) {
  std::atomic<int> here{0};
  const std::thread::id consumer = std::this_thread::get_id();
  FakeFeed feed(
      1000, {1, 1},
      [&](const int64_t*, int64_t) { here += std::this_thread::get_id() == consumer; }, true);
  for (int64_t i = 0; i < 1000 || here == 0; ++i) {  // sooner or later the filler is the later one
    feed.submit({i % 1000});
    EXPECT_TRUE(feed->wait_ready(0ns) || feed->wait_ready(kForEver));
    EXPECT_EQ(samples_of(feed->take()), std::vector<int64_t>{i % 1000});
    if (i % 10 == 0) busy(2 * kTwoSpins);  // the filler falls asleep
  }
  EXPECT_EQ(feed.filler->fills(), feed->stats().batches) << "a batch was filled twice, or never";
}

TEST(FeederWaits, NothingOutstandingIsReady) {
  FakeFeed feed(10, {1, 1});
  EXPECT_TRUE(feed->ready());
  EXPECT_TRUE(feed->wait_ready(kForEver));
}

TEST(FeederWaits, StopReachesAConsumerWhoseFillerIsStuck_case8) {
  std::latch filling(1), gate(1);
  FakeFeed feed(10, {1, 1}, [&](const int64_t*, int64_t) {
    filling.count_down();
    gate.wait();
  });
  feed.submit({1});
  std::thread stopper([&] {
    filling.wait();
    feed->stop();  // ends only when the filler does
  });
  EXPECT_EQ(message_of<std::runtime_error>([&] { feed->take(); }), "this iterator has been closed");
  gate.count_down();
  stopper.join();
}

TEST(FeederWaits, AfterStopEveryCallSaysSoAndNoneWaits_case8) {
  std::latch filling(1), gate(1);
  FakeFeed feed(10, {1, 2}, [&](const int64_t*, int64_t) {
    filling.count_down();
    gate.wait();
  });
  feed.submit({1});
  feed.submit({2});
  filling.wait();
  std::thread stopper([&] { feed->stop(); });
  EXPECT_THROW(feed->take(), std::runtime_error);
  gate.count_down();
  stopper.join();
  feed->stop();
  EXPECT_TRUE(feed->ready()) << "take() would throw at once: a consumer that polls has to see that";
  EXPECT_THROW(feed->take(), std::runtime_error);
  EXPECT_THROW(feed->wait_ready(kForEver), std::runtime_error);
  EXPECT_THROW(feed.submit({3}), std::runtime_error);
  EXPECT_THROW(feed->follow(Schedule({1, 1})), std::runtime_error);
  EXPECT_EQ(feed->stats().batches, 0);
  EXPECT_EQ(feed.pool->stats().held, 0);
}

TEST(FeederWaits, SlotsOfBatchesNotTakenReturnWithStop_case8) {
  for (int threads : {0, 1, 3}) {
    FakeFeed feed(1000, {threads, 6});
    feed->follow(Schedule({1000, 8}));
    const Batch batch = feed->take();
    EXPECT_TRUE(feed->wait_ready(kForEver));
    feed->stop();
    EXPECT_EQ(feed.pool->stats().held, 1) << "the batch taken";
    EXPECT_EQ(feed->stats().ready, 0);
    EXPECT_EQ(samples_of(batch)[7], 7);
  }
}

TEST(FeederWaits, StopMayComeFromManyThreadsAtOnce_case8) {
  for (int round = 0; round < 50; ++round) {
    FakeFeed feed(1000, {2, 4});
    feed->follow(Schedule({1000, 8}));
    std::latch start(4);
    std::vector<std::thread> stoppers;
    for (int t = 0; t < 3; ++t) {
      stoppers.emplace_back([&] {
        start.arrive_and_wait();
        feed->stop();
      });
    }
    start.arrive_and_wait();
    try {
      while (feed->outstanding() > 0) feed->take();
    } catch (const std::runtime_error& closed) {
      EXPECT_STREQ(closed.what(), "this iterator has been closed");
    }
    for (std::thread& thread : stoppers) thread.join();
    EXPECT_EQ(feed.pool->stats().held, 0);
  }
}

TEST(FeederWaits, OutstandingBatchesAreDroppedByTheDestructor_case9) {
  for (int threads : {0, 1, 3}) {
    for (int round = 0; round < 100; ++round) {
      FakeFeed feed(1000, {threads, 6}, [](const int64_t* indices, int64_t) {
        if (indices[0] % 7 == 0) throw std::domain_error("dropped unseen");
      });
      feed->follow(Schedule({1000, 8}, 1, static_cast<uint64_t>(round)));
      for (int taken = 0; taken < round % 3; ++taken) {
        try {
          feed->take();
        } catch (const std::domain_error&) {
        }
      }
      feed.feeder.reset();
      ASSERT_EQ(feed.pool->stats().held, 0);
      ASSERT_EQ(feed.filler.use_count(), 1);
    }
  }
}

TEST(FeederWaits, APollingConsumerIsServed) {
  // The fillers sleep, half of the ring is filled and the rest is not: once the filled half is
  // taken, nobody but take() can wake them for a consumer that only looks.
  std::atomic<bool> open{false};
  FakeFeed feed(1000, {2, 8}, [&](const int64_t* indices, int64_t) {
    if (indices[0] == 0) open.wait(false);
  });
  for (int round = 0; round < 20; ++round) {
    open.store(false);
    for (int64_t i = 0; i < 8; ++i) feed.submit({i});
    open.store(true);  // only now, so that whoever fills batch 0 finds the others afterwards
    open.notify_all();
    while (feed->stats().ready < 8) std::this_thread::yield();
    busy(4 * kTwoSpins);  // beyond the spin; if they are still awake, the test only proves less
    for (int64_t i = 0; i < 4; ++i) feed->take();
    for (int64_t i = 8; i < 12; ++i) feed.submit({i});
    for (int64_t i = 4; i < 12; ++i) {
      while (!feed->ready()) std::this_thread::yield();
      ASSERT_EQ(samples_of(feed->take()), std::vector<int64_t>{i});
    }
  }
}

class FeederWakeUps : public testing::TestWithParam<std::tuple<int, int, bool>> {};

INSTANTIATE_TEST_SUITE_P(ThreadsAndDepth, FeederWakeUps,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(1, 2, 3, 8),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_threads_depth_" +
                                  std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) ? "_quick" : "");
                         });

TEST_P(FeederWakeUps, NoneIsLostInPingPong) {
  const auto [threads, depth, quick] = GetParam();
  FakeFeed feed(1000, {threads, depth}, {}, quick);
  int64_t asked = 0;
  const int64_t batches = 100'000 / kSlower;
  for (int64_t taken = 0; taken < batches; ++taken) {
    while (asked < batches && !feed->full()) feed.submit({asked++ % 1000});
    ASSERT_TRUE(feed->wait_ready(kForEver));
    ASSERT_EQ(samples_of(feed->take())[0], taken % 1000);
  }
}

TEST_P(FeederWakeUps, NoneIsLostAroundTheMomentOfFallingAsleep) {
  // Pauses on both sides end near the 50 µs after which either stops spinning.
  const auto [threads, depth, quick] = GetParam();
  std::atomic<unsigned> seed{1};
  FakeFeed feed(
      1000, {threads, depth},
      [&](const int64_t*, int64_t) {
        std::minstd_rand random(seed.fetch_add(1));
        if (random() % 2 == 0) busy(random() % kTwoSpins);
      },
      quick);
  std::minstd_rand random(1);
  int64_t asked = 0;
  const int64_t batches = 5000;
  for (int64_t taken = 0; taken < batches; ++taken) {
    while (asked < batches && !feed->full()) feed.submit({asked++ % 1000});
    if (random() % 2 == 0) busy(random() % kTwoSpins);
    ASSERT_TRUE(feed->wait_ready(kForEver));
    ASSERT_EQ(samples_of(feed->take())[0], taken % 1000);
  }
}

TEST(FeederWaits, FillersTakeNoSignalsButTheirOwnFaults_case10) {
  sigset_t before, after, filler;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  FakeFeed feed(10, {1, 1},
                [&](const int64_t*, int64_t) { pthread_sigmask(SIG_SETMASK, nullptr, &filler); });
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  feed.submit({1});
  feed->take();
  for (int signal : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1}) {
    EXPECT_EQ(sigismember(&filler, signal), 1) << signal;
  }
  for (int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP}) {
    EXPECT_EQ(sigismember(&filler, fault), 0) << fault;
  }
  for (int signal = 1; signal < NSIG; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
}

// The address sanitizer's allocator takes no part in fork(): a thread that allocates at that moment
// (one that is just starting does) leaves it locked in the child for ever. The thread sanitizer
// refuses threads in such a child.
#ifndef __SANITIZE_ADDRESS__
bool throws_runtime_error(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::runtime_error&) {
    return true;
  }
  return false;
}

TEST(FeederWaits, AForkedChildIsToldAndCanLetGo) {
  for (int threads : {0, 1, 3}) {
    FakeFeed feed(1000, {threads, 4});
    feed->follow(Schedule({1000, 8}));
    const Batch batch = feed->take();
    EXPECT_TRUE(feed->wait_ready(kForEver));
    busy(4 * kTwoSpins);  // fillers asleep on their condition variable: it cannot be destroyed
    EXPECT_EQ(in_child([&] {
                const bool told = feed->ready() && throws_runtime_error([&] { feed->take(); }) &&
                                  throws_runtime_error([&] { feed.submit({1}); }) &&
                                  throws_runtime_error([&] { feed->follow(Schedule({1, 1})); }) &&
                                  throws_runtime_error([&] { feed->wait_ready(kForEver); }) &&
                                  throws_runtime_error([&] { feed->stats(); });
                feed->stop();
                const bool readable = samples_of(batch)[7] == 7;
                feed.feeder.reset();
                feed.pool.reset();
                feed.filler.reset();
                return told && readable;
              }),
              Child::ok)
        << threads;
    EXPECT_EQ(samples_of(feed->take())[0], 8) << "the parent goes on";
  }
}

TEST(FeederWaits, ForkingWhileFillersWorkIsSafe) {
  FakeFeed feed(1'000'000, {3, 4}, [](const int64_t* indices, int64_t) {
    if (indices[0] % 2 == 0) throw std::domain_error("even");
  });
  feed->follow(Schedule({1'000'000, 1}));
  for (int round = 0; round < 30; ++round) {
    for (int i = 0; i < 50; ++i) {
      try {
        feed->take();
      } catch (const std::domain_error&) {
      }
    }
    EXPECT_EQ(in_child([&] {
                feed.feeder.reset();
                feed.pool.reset();
                return true;
              }),
              Child::ok);
  }
}

#ifndef __SANITIZE_THREAD__
TEST(FeederWaits, AForkedChildMakesItsOwn_case12) {
  FakeFeed parents(1000, {2, 2});
  EXPECT_EQ(in_child([&] {
              FakeFeed feed(1000, {2, 2});
              feed.submit({5});
              return samples_of(feed->take()) == std::vector<int64_t>{5};
            }),
            Child::ok);
}
#endif
#endif

}  // namespace
}  // namespace aegis
