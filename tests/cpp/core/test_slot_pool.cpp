#include "core/slot_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "core/child.h"
#include "core/errors.h"

namespace aegis {
namespace {

TEST(SlotPool, WarmSlotsAreThereAndCountAsNotFresh) {
  const auto pool = SlotPool::make(1000, 3);
  EXPECT_EQ(pool->stats().slots, 3);
  std::vector<SlotLease> leases;
  for (int i = 0; i < 3; ++i) leases.push_back(pool->acquire(1000));
  EXPECT_EQ(pool->stats().held, 3);
  EXPECT_EQ(pool->stats().fresh, 0);
  leases.push_back(pool->acquire(1000));
  EXPECT_EQ(pool->stats().slots, 4);
  EXPECT_EQ(pool->stats().fresh, 1);
  std::set<std::byte*> memory;
  for (const SlotLease& lease : leases) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(lease.data()) % 64, 0u);
    std::memset(lease.data(), 0xAB, 1000);
    memory.insert(lease.data());
  }
  EXPECT_EQ(memory.size(), 4u);
}

TEST(SlotPool, SlotReturnsWithItsLastLease_case59) {
  const auto pool = SlotPool::make(64, 1);
  SlotLease first = pool->acquire(64);
  std::byte* const memory = first.data();
  SlotLease copy = first;
  SlotLease moved = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_EQ(copy.data(), memory);
  EXPECT_EQ(moved.data(), memory);
  SlotLease assigned;
  assigned = moved;
  assigned = *&assigned;
  copy.reset();
  copy.reset();
  moved = SlotLease();
  EXPECT_EQ(pool->stats().held, 1);
  ASSERT_TRUE(assigned);
  EXPECT_NE(pool->acquire(64).data(), memory);
  assigned = std::move(copy);  // empty
  EXPECT_EQ(pool->stats().held, 0);
  SlotLease next = pool->acquire(64), other = pool->acquire(64);
  EXPECT_TRUE(next.data() == memory || other.data() == memory);
}

TEST(SlotPool, AssigningOverTheLastLeaseReturnsIt) {
  const auto pool = SlotPool::make(64, 2);
  SlotLease lease = pool->acquire(64);
  lease = pool->acquire(64);
  EXPECT_EQ(pool->stats().held, 1);
}

TEST(SlotPool, LeasesOutliveTheHandle) {
  auto pool = SlotPool::make(4096, 1);
  const std::weak_ptr<SlotPool> watch = pool;
  SlotLease lease = pool->acquire(4096);
  SlotLease copy = lease;
  pool.reset();
  lease.reset();
  ASSERT_FALSE(watch.expired());
  std::memset(copy.data(), 1, 4096);
  copy.reset();
  EXPECT_TRUE(watch.expired());
}

/// Acquires `count` slots one after the other, holding one at a time.
void use_one_at_a_time(SlotPool& pool, int count) {
  for (int i = 0; i < count; ++i) pool.acquire(1);
}

TEST(SlotPool, SurplusIsGivenBackWhenUseFalls_case9) {
  const auto pool = SlotPool::make(64, 2);
  {
    std::vector<SlotLease> leases;
    for (int i = 0; i < 20; ++i) leases.push_back(pool->acquire(64));
  }
  EXPECT_EQ(pool->stats().slots, 20) << "given back at once: the next burst would map it again";
  use_one_at_a_time(*pool, 1000);
  EXPECT_EQ(pool->stats().slots, 2) << "the warm ones stay";
  EXPECT_EQ(pool->stats().held, 0);
  EXPECT_EQ(pool->stats().fresh, 18);
}

TEST(SlotPool, SteadyUseMapsNothingNew) {
  const auto pool = SlotPool::make(64, 0);
  std::deque<SlotLease> held;
  const auto turn = [&] {
    held.push_back(pool->acquire(64));
    if (held.size() > 5) held.pop_front();
  };
  for (int i = 0; i < 10; ++i) turn();
  const int64_t fresh = pool->stats().fresh;
  for (int i = 0; i < 10'000; ++i) turn();
  EXPECT_EQ(pool->stats().fresh, fresh);
  EXPECT_EQ(pool->stats().slots, 6);
}

TEST(SlotPool, SlotsGrowToTheLargestRequest) {
  const size_t page = page_size();
  const auto pool = SlotPool::make(page, 3);
  SlotLease small = pool->acquire(page);
  SlotLease large = pool->acquire(10 * page);
  std::memset(large.data(), 1, 10 * page);
  EXPECT_EQ(pool->slot_bytes(), 10 * page);
  EXPECT_EQ(pool->stats().slots, 2) << "free slots that are too small are unmapped";
  std::memset(small.data(), 2, page);
  small.reset();
  EXPECT_EQ(pool->stats().slots, 1) << "and held ones when they return";
  EXPECT_EQ(pool->stats().held, 1);
  std::memset(pool->acquire(1).data(), 3, 10 * page);
}

TEST(SlotPool, ARequestThatCannotBeMetLeavesThePoolAsItWas) {
  const auto pool = SlotPool::make(64, 2);
  const std::byte* const memory = pool->acquire(64).data();
  EXPECT_THROW(pool->acquire(size_t{1} << 61), std::runtime_error);
  EXPECT_THROW(pool->acquire(SIZE_MAX), std::invalid_argument);
  EXPECT_EQ(pool->slot_bytes(), 64u);
  EXPECT_EQ(pool->stats().slots, 2);
  EXPECT_EQ(pool->stats().fresh, 0);
  EXPECT_EQ(pool->acquire(64).data(), memory);
}

TEST(SlotPool, BadOptionsAreNamed) {
  EXPECT_EQ(message_of<std::invalid_argument>([] { SlotPool::make(0, 1); }),
            "slot_bytes: expected at least 1, got 0");
  EXPECT_EQ(message_of<std::invalid_argument>([] { SlotPool::make(1, -1); }),
            "warm: expected at least 0, got -1");
}

/// What a lease's first owner writes; whoever holds a copy must find it unchanged.
struct Stamp {
  uint64_t owner, check;
};

TEST(SlotPool, ManyThreadsCopyMoveAndDropLeases) {
  constexpr int kThreads = 4, kRounds = 20'000, kShelf = 8;
  const auto pool = SlotPool::make(64, 2);
  // Leases travel between threads by way of a few shelves, each with a lock of its own.
  struct Shelf {
    std::mutex mutex;
    SlotLease lease;
  };
  std::vector<Shelf> shelves(kShelf);
  std::atomic<int> torn{0};
  std::atomic<uint64_t> next_owner{1};
  const auto look = [&](const SlotLease& lease) {
    if (!lease) return;
    const Stamp& stamp = *reinterpret_cast<const Stamp*>(lease.data());
    if (stamp.check != ~stamp.owner) torn.fetch_add(1);
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      SlotLease mine;
      for (int round = 0; round < kRounds; ++round) {
        Shelf& shelf = shelves[random() % kShelf];
        SlotLease dropped;  // outside the lock
        switch (random() % 4) {
          case 0: {
            SlotLease lease = pool->acquire(64);
            const uint64_t owner = next_owner.fetch_add(1);
            *reinterpret_cast<Stamp*>(lease.data()) = {owner, ~owner};
            dropped = std::exchange(mine, std::move(lease));
            break;
          }
          case 1: {
            const std::lock_guard lock(shelf.mutex);
            dropped = std::exchange(shelf.lease, mine);
            break;
          }
          case 2: {
            const std::lock_guard lock(shelf.mutex);
            dropped = std::exchange(mine, shelf.lease);
            break;
          }
          default: {
            const std::lock_guard lock(shelf.mutex);
            std::swap(mine, shelf.lease);
          }
        }
        look(mine);
        look(dropped);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  shelves.clear();
  EXPECT_EQ(pool->stats().held, 0);
  EXPECT_LE(pool->stats().slots, kThreads * 3 + kShelf) << "slots held at once, at most";
}

TEST(SlotPool, AForkedChildReturnsNothingAndDoesNotWait) {
  auto pool = SlotPool::make(64, 2);
  SlotLease lease = pool->acquire(64);
  std::memset(lease.data(), 7, 64);
  EXPECT_EQ(in_child([&] {
              const bool kept = lease.data()[63] == std::byte{7};
              lease.reset();
              pool.reset();
              return kept;
            }),
            Child::ok);
  EXPECT_EQ(pool->stats().held, 1);
}

TEST(SlotPool, AForkedChildIsToldThatThePoolIsNotItsOwn) {
  const auto pool = SlotPool::make(64, 2);
  EXPECT_EQ(in_child([&] {
              int refused = 0;
              const auto expect_refusal = [&](auto&& f) {
                try {
                  f();
                } catch (const std::runtime_error&) {
                  ++refused;
                }
              };
              expect_refusal([&] { pool->acquire(64); });
              expect_refusal([&] { pool->stats(); });
              expect_refusal([&] { pool->slot_bytes(); });
              return refused == 3;
            }),
            Child::ok);
}

TEST(SlotPool, ForkingWhileOtherThreadsHoldTheLockIsSafe) {
  auto pool = SlotPool::make(64, 0);
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!done.load()) {
        std::vector<SlotLease> leases;  // maps and unmaps, so that the lists are often half changed
        for (int i = 0; i < 3; ++i) leases.push_back(pool->acquire(64));
        for (int i = 0; i < 70; ++i) pool->acquire(64);
      }
    });
  }
  for (int round = 0; round < 30; ++round) {
    SlotLease lease = pool->acquire(64);
    EXPECT_EQ(in_child([&] {
                lease.reset();
                pool.reset();
                return true;
              }),
              Child::ok);
  }
  done.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->stats().held, 0);
}

}  // namespace
}  // namespace aegis
