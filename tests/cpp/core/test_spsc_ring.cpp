// The ring between threads, between processes, and when a side is closed or dead.
#include "core/spsc_ring.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "core/child.h"
#include "core/errors.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kEntries = 200'000;
#else
constexpr uint64_t kEntries = 2'000'000;
#endif

namespace aegis {
namespace {

using namespace std::chrono_literals;
using Wait = SpscRing::Wait;

constexpr auto kForEver = 24h;  // a wait that is lost shows as a test that CTest ends

SpscEntry entry(uint64_t number) {
  SpscEntry e = {};
  e.sequence = number * 0x9E3779B97F4A7C15;
  e.token = static_cast<uint32_t>(number);
  e.position = static_cast<uint32_t>(number >> 7);
  e.logit_delta = static_cast<float>(number % 1000);
  e.reserved[4] = ~e.token;
  e.turn = static_cast<uint32_t>(number + 2);  // the ring's to write: as if the next had come
  return e;
}

bool is(const SpscEntry& e, uint64_t number) {
  SpscEntry want = entry(number);
  want.turn = 0;
  return std::memcmp(&e, &want, sizeof e) == 0;
}

/// Pushes entries first, ..., stop - 1, in batches of random sizes or one by one.
void produce(SpscRing& ring, uint64_t first, uint64_t stop, bool batches) {
  std::mt19937 random(1);
  std::vector<SpscEntry> some;
  for (uint64_t n = first; n < stop;) {
    if (!batches) {
      while (!ring.try_push(entry(n))) ring.wait_room(kForEver);
      ++n;
      continue;
    }
    some.clear();
    const uint64_t size = std::min<uint64_t>(1 + random() % 100, stop - n);
    for (uint64_t i = 0; i < size; ++i) some.push_back(entry(n + i));
    for (std::span<const SpscEntry> rest = some; !rest.empty();) {
      const size_t pushed = ring.try_push(rest);
      if (pushed == 0) ring.wait_room(kForEver);
      rest = rest.subspan(pushed);
    }
    n += size;
  }
}

/// Pops until the ring is closed and empty; returns how many came, or nothing where one was wrong.
uint64_t consume(SpscRing& ring, bool batches) {
  std::mt19937 random(2);
  std::vector<SpscEntry> some(100);
  uint64_t n = 0;
  while (true) {
    const size_t size = batches ? 1 + random() % some.size() : 1;
    const size_t popped =
        batches ? ring.try_pop(std::span(some).first(size)) : ring.try_pop(some[0]);
    for (size_t i = 0; i < popped; ++i) {
      if (!is(some[i], n + i)) return 0;
    }
    n += popped;
    if (popped == 0 && ring.wait_entry(kForEver) != Wait::ready) return n;
  }
}

TEST(SpscRing, GivesBackWhatWasPushedInOrder) {
  const auto ring = SpscRing::create(5);
  EXPECT_EQ(ring->capacity(), 8u);
  EXPECT_EQ(ring->fd(), -1);
  uint64_t pushed = 0, popped = 0;
  std::mt19937 random(3);
  for (int step = 0; step < 2000; ++step) {
    std::vector<SpscEntry> some(random() % 12);
    if (random() % 2 == 0) {
      for (size_t i = 0; i < some.size(); ++i) some[i] = entry(pushed + i);
      const size_t room = ring->capacity() - ring->size();
      ASSERT_EQ(ring->try_push(some), std::min(room, some.size()));
      pushed += std::min(room, some.size());
    } else {
      const size_t there = ring->size();
      ASSERT_EQ(there, pushed - popped);
      const size_t got = ring->try_pop(std::span(some));
      ASSERT_EQ(got, std::min(there, some.size()));
      for (size_t i = 0; i < got; ++i) ASSERT_TRUE(is(some[i], popped + i));
      popped += got;
    }
  }
  SpscEntry e;
  while (ring->try_pop(e)) ASSERT_TRUE(is(e, popped++));
  EXPECT_EQ(pushed, popped);
  while (ring->try_push(entry(pushed))) ++pushed;
  EXPECT_EQ(ring->size(), 8u);
}

class SpscRingThreads : public testing::TestWithParam<std::tuple<bool, bool, uint64_t>> {};

TEST_P(SpscRingThreads, NothingIsLostOrTorn) {
  const auto [push_batches, pop_batches, capacity] = GetParam();
  const auto ring = SpscRing::create(capacity);
  const uint64_t entries = capacity == 1 ? kEntries / 100 : kEntries;  // there, each waits
  std::thread producer([&, batches = push_batches] {
    produce(*ring, 0, entries, batches);
    ring->close();
  });
  EXPECT_EQ(consume(*ring, pop_batches), entries);
  producer.join();
  EXPECT_EQ(ring->size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(, SpscRingThreads,
                         testing::Combine(testing::Bool(), testing::Bool(),
                                          testing::Values(1u, 64u, 4096u)));

TEST(SpscRing, NothingIsLostBetweenProcesses) {
  const auto ring = SpscRing::create(1024, true);
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    const auto mine = SpscRing::attach(ring->fd());
    produce(*mine, 0, kEntries, true);
    mine->close();
    _exit(0);
  }
  EXPECT_EQ(consume(*ring, true), kEntries);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(SpscRing, ClosingEndsBothSides) {
  const auto ring = SpscRing::create(2);
  EXPECT_EQ(ring->wait_room(0ns), Wait::ready);
  EXPECT_EQ(ring->wait_entry(1ms), Wait::timeout);
  ring->try_push(entry(0));
  ring->try_push(entry(1));
  EXPECT_EQ(ring->wait_room(1ms), Wait::timeout);
  std::thread closer([&] { ring->close(); });
  EXPECT_EQ(ring->wait_room(kForEver), Wait::closed);
  closer.join();
  EXPECT_TRUE(ring->closed());
  SpscEntry e;
  EXPECT_EQ(ring->wait_entry(kForEver), Wait::ready) << "what was pushed before is still there";
  EXPECT_TRUE(ring->try_pop(e) && is(e, 0) && ring->try_pop(e) && is(e, 1));
  EXPECT_EQ(ring->wait_entry(kForEver), Wait::closed);
  EXPECT_EQ(ring->wait_entry(-1s), Wait::closed);
}

TEST(SpscRing, AConsumerHearsThatItsProducerWasKilled) {
  const auto ring = SpscRing::create(8, true);
  const pid_t child = fork();
  if (child == 0) {
    ring->be_producer();
    ring->try_push(entry(0));
    ring->try_push(entry(1));
    while (true) pause();
  }
  while (ring->size() < 2) std::this_thread::yield();
  kill(child, SIGKILL);
  SpscEntry e;
  EXPECT_EQ(ring->wait_entry(kForEver), Wait::ready);
  EXPECT_TRUE(ring->try_pop(e) && ring->try_pop(e) && is(e, 1));
  EXPECT_EQ(ring->wait_entry(kForEver), Wait::gone)
      << "not waited for by its parent, it is a zombie";
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(ring->wait_entry(kForEver), Wait::gone);
}

TEST(SpscRing, AProducerHearsThatItsConsumerIsGone) {
  const auto ring = SpscRing::create(1, true);
  EXPECT_EQ(in_child([&] { return ring->wait_entry(1ns) == Wait::timeout; }), Child::ok);
  ring->try_push(entry(0));
  EXPECT_EQ(ring->wait_room(kForEver), Wait::gone);
}

TEST(SpscRing, ASideCanBeHandedOn) {
  const auto first = SpscRing::create(4, true);
  const auto second = SpscRing::attach(first->fd());
  SpscEntry e;
  for (uint64_t n = 0; n < 40; ++n) {
    SpscRing& pushing = n % 3 == 0 ? *first : *second;
    SpscRing& popping = n % 5 == 0 ? *first : *second;
    ASSERT_TRUE(pushing.try_push(entry(n)));
    ASSERT_TRUE(popping.try_pop(e));
    ASSERT_TRUE(is(e, n));
    ASSERT_FALSE(first->try_pop(e));
    ASSERT_EQ(second->try_pop(std::span(&e, 1)), 0u);
  }
}

/// A view of the memory of a shared ring, as another process might have it.
struct Words {
  explicit Words(const SpscRing& ring) : memory(Mapping::of_file(ring.fd(), 0, page_size())) {}
  std::atomic<uint64_t>& at(size_t byte) {
    return *reinterpret_cast<std::atomic<uint64_t>*>(memory.data() + byte);
  }
  Mapping memory;
};
constexpr size_t kCapacity = 8, kTail = 64, kHead = 128;

TEST(SpscRing, AProducerGoesOnBehindWhatAKilledOneHadNotCounted) {
  for (const uint64_t popped : {0u, 2u}) {
    const auto first = SpscRing::create(4, true);
    Words words(*first);
    SpscEntry e;
    for (uint64_t n = 0; n < 6; ++n) ASSERT_TRUE(first->try_push(entry(n)) && first->try_pop(e));
    for (uint64_t n = 6; n < 9; ++n) ASSERT_TRUE(first->try_push(entry(n)));
    for (uint64_t n = 0; n < popped; ++n) ASSERT_TRUE(first->try_pop(e));
    words.at(kTail) = 7;
    EXPECT_LE(first->size(), 1u);
    const auto second = SpscRing::attach(first->fd());
    second->be_producer();
    EXPECT_EQ(second->size(), 3 - popped);
    ASSERT_TRUE(second->try_push(entry(9)));
    for (uint64_t n = 6 + popped; n < 10; ++n) ASSERT_TRUE(first->try_pop(e) && is(e, n));
    EXPECT_FALSE(first->try_pop(e));
  }
}

TEST(SpscRing, ASideComesBackFromAProcessThatWasKilled) {
  const auto ring = SpscRing::create(8, true);
  Words words(*ring);
  ring->be_producer();
  ASSERT_TRUE(ring->try_push(entry(0)));
  EXPECT_EQ(in_child([&] {
              ring->be_producer();
              const bool pushed = ring->try_push(entry(1));
              words.at(kTail) = 1;  // as if killed before it counted
              return pushed;
            }),
            Child::ok);
  ring->be_producer();
  EXPECT_EQ(ring->size(), 2u);
  ASSERT_TRUE(ring->try_push(entry(2)));
  SpscEntry e;
  for (uint64_t n = 0; n < 3; ++n) ASSERT_TRUE(ring->try_pop(e) && is(e, n));
  EXPECT_EQ(ring->wait_entry(50ms), Wait::timeout) << "the producer is this process again";
}

TEST(SpscRing, IndicesGoOnAcrossTwoToTheThirtySecondAndTwoToTheSixtyFourth) {
  for (const uint64_t start : {(uint64_t{1} << 32) - 5, ~uint64_t{0} - 5}) {
    const auto first = SpscRing::create(4, true);
    Words words(*first);
    words.at(kTail) = words.at(kHead) = start;
    const auto ring = SpscRing::attach(first->fd());
    SpscEntry some[3], more[4];
    for (uint64_t n = 0; n < 30; n += 3) {
      for (uint64_t i = 0; i < 3; ++i) some[i] = entry(n + i);
      ASSERT_EQ(ring->try_push(some), 3u);
      ASSERT_TRUE(ring->try_push(entry(n + 99)));
      ASSERT_FALSE(ring->try_push(entry(0)));
      ASSERT_EQ(ring->size(), 4u);
      ASSERT_EQ(ring->try_pop(more), 4u);
      ASSERT_TRUE(is(more[0], n) && is(more[2], n + 2) && is(more[3], n + 99));
      ASSERT_FALSE(ring->try_pop(more[0]));
    }
  }
}

TEST(SpscRing, WhateverTheOtherProcessWritesNoMoreIsCopiedThanThereIsMemoryFor) {
  const uint64_t forged[] = {5, 1000, uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}};
  std::vector<SpscEntry> many(4096, entry(1));
  for (const uint64_t index : forged) {
    for (const size_t which : {kTail, kHead}) {
      const auto ring = SpscRing::create(4, true);
      Words words(*ring);
      words.at(which) = index;
      words.at(kCapacity) = uint64_t{1} << 40;
      EXPECT_LE(ring->try_push(many), 4u);
      words.at(which) = index;
      EXPECT_LE(ring->try_pop(many), 4u);
      EXPECT_LE(ring->size(), 4u);
      EXPECT_EQ(ring->capacity(), 4u);
      const bool there = ring->wait_entry(0ns) == Wait::ready;
      EXPECT_EQ(ring->try_pop(std::span(many).first(1)), there ? 1u : 0u);
    }
  }
}

TEST(SpscRing, BadInput) {
  EXPECT_EQ(message_of<std::invalid_argument>([] { SpscRing::create(0); }),
            "capacity: expected 1 to 1073741824 entries, got 0");
  EXPECT_THROW(SpscRing::create(uint64_t{1} << 31), std::invalid_argument);
  EXPECT_EQ(message_of<std::runtime_error>([] { SpscRing::attach(-1); }),
            "fd: expected the descriptor of a ring, got -1");
  const Mapping other(4096, {.shared = true});
  EXPECT_EQ(message_of<std::runtime_error>([&] { SpscRing::attach(other.fd()); }),
            "fd: expected the descriptor of a ring, got that of 4096 other bytes");
}

}  // namespace
}  // namespace aegis
