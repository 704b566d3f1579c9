#include "core/slot_lane.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace aegis {
namespace {

using Lease = SlotLane::Lease;

const size_t kPage = page_size();

int64_t pages_of(const SharedFile& file) {
  struct stat found{};
  EXPECT_EQ(fstat(file.fd(), &found), 0);
  return found.st_blocks * 512 / static_cast<int64_t>(kPage) - 1;  // without the header
}

/// A child that lives until told to end; tells whether `check` held after `wake()`.
template <class Check>
class Child {
 public:
  explicit Child(Check check) {
    EXPECT_EQ(pipe(go_), 0);
    pid_ = fork();
    if (pid_ == 0) {
      alarm(20);
      char byte;
      _exit(read(go_[0], &byte, 1) == 1 && check() ? 0 : 1);
    }
  }
  bool end() {
    EXPECT_EQ(write(go_[1], "x", 1), 1);
    int status = 1;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    close(go_[0]);
    close(go_[1]);
    return status == 0;
  }

 private:
  int go_[2];
  pid_t pid_;
};

TEST(SlotLane, ASlotReturnsWithItsLastLease_case59) {
  const auto lane = SlotLane::make();
  Lease first = lane->acquire(1000);
  std::byte* const memory = first->data();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
  Lease copy = first;
  first.reset();
  EXPECT_EQ(lane->stats().held, 1);
  EXPECT_NE(lane->acquire(1000)->data(), memory);
  copy.reset();
  EXPECT_EQ(lane->stats().held, 0);
  EXPECT_EQ(lane->acquire(1000)->data(), memory) << "the last to return is the warmest";
}

TEST(SlotLane, SteadyUseMapsNothingNew) {
  const auto lane = SlotLane::make();
  std::deque<Lease> held;
  for (int i = 0; i < 10'000; ++i) {
    held.push_back(lane->acquire(5000));
    if (held.size() > 5) held.pop_front();
  }
  EXPECT_EQ(lane->stats().fresh, 6);
  EXPECT_EQ(lane->stats().slots, 6);
}

TEST(SlotLane, VaryingSizesSettleOnSlotsForAll) {
  const auto lane = SlotLane::make();
  std::minstd_rand random(1);
  std::deque<Lease> held;
  const auto turn = [&] {
    held.push_back(lane->acquire(500 * kPage + random() % (500 * kPage)));
    if (held.size() > 3) held.pop_front();
  };
  for (int i = 0; i < 1000; ++i) turn();
  const int64_t fresh = lane->stats().fresh;
  EXPECT_LE(fresh, 40);
  for (int i = 0; i < 1000; ++i) turn();
  EXPECT_LE(lane->stats().fresh, fresh + 4);
}

TEST(SlotLane, OneHugeBatchDoesNotMakeEverySlotHuge) {
  const auto lane = SlotLane::make();
  for (int i = 0; i < 40; ++i) lane->acquire(10 * kPage);
  Lease huge = lane->acquire(4000 * kPage);
  std::memset(huge->data(), 1, 4000 * kPage);
  EXPECT_EQ(lane->stats().slot_bytes, static_cast<int64_t>(10 * kPage + 10 * kPage / 8));
  huge.reset();
  EXPECT_LT(lane->stats().bytes, static_cast<int64_t>(100 * kPage));
}

TEST(SlotLane, SlotsGrowAndShrinkWithWhatBatchesNeed) {
  const auto lane = SlotLane::make();
  for (size_t need : {10 * kPage, 1000 * kPage, 20 * kPage}) {
    for (int i = 0; i < 80; ++i) {
      Lease lease = lane->acquire(need);
      std::memset(lease->data(), 1, need);
    }
    EXPECT_EQ(lane->stats().slot_bytes, static_cast<int64_t>(need));
    EXPECT_EQ(lane->stats().slots, 1);
    EXPECT_GE(lane->acquire(need)->bytes(), need);
    EXPECT_LE(lane->acquire(need)->bytes(), need + need / 8 + kPage);
  }
}

TEST(SlotLane, SurplusIsGivenBackWhenUseFalls_case9) {
  const auto lane = SlotLane::make();
  std::vector<Lease> leases;
  for (int i = 0; i < 20; ++i) leases.push_back(lane->acquire(kPage));
  leases.clear();
  EXPECT_EQ(lane->stats().slots, 20) << "given back at once: the next burst would map it again";
  for (int i = 0; i < 1000; ++i) lane->acquire(kPage);
  EXPECT_EQ(lane->stats().slots, 1);
}

TEST(SlotLane, NothingIsLentBeforeASizeIsKnown) {
  const auto lane = SlotLane::make(SharedFile::create());
  EXPECT_EQ(lane->lend(), nullptr);
  lane->note(3 * kPage - 1);
  const Lease lease = lane->lend();
  ASSERT_NE(lease, nullptr);
  EXPECT_EQ(lease->bytes(), 3 * kPage);
  EXPECT_EQ(lease->offset(), SharedFile::first());
}

TEST(SlotLane, ASharedSlotIsWrittenThroughTheFile) {
  const auto file = SharedFile::create();
  const auto lane = SlotLane::make(file);
  lane->note(kPage);
  const Lease lease = lane->lend();
  EXPECT_EQ(pages_of(*file), 0) << "a range of addresses only";
  file->map(lease->offset(), kPage).data()[5] = std::byte{9};
  EXPECT_EQ(lease->data()[5], std::byte{9});
}

TEST(SlotLane, SlotsOfOthersAreTakenOver) {
  const auto file = SharedFile::create();
  const auto lane = SlotLane::make(file);
  const uint64_t offset = file->reserve(2 * kPage);
  file->map(offset, 2 * kPage).data()[0] = std::byte{3};
  Lease lease = lane->adopt(offset, 2 * kPage);
  lane->note(2 * kPage);
  EXPECT_EQ(lease->data()[0], std::byte{3});
  EXPECT_EQ(lane->ranges(), (std::map<uint64_t, size_t>{{offset, 2 * kPage}}));
  lease.reset();
  EXPECT_EQ(lane->lend()->offset(), offset);
  EXPECT_THROW(lane->adopt(offset + 1, kPage), std::invalid_argument);
  EXPECT_THROW(lane->adopt(0, kPage), std::invalid_argument);
  EXPECT_THROW(lane->adopt(offset + kPage, 2 * kPage), std::invalid_argument);
  EXPECT_THROW(SlotLane::make()->adopt(offset, kPage), std::invalid_argument);
}

TEST(SlotLane, PagesOfSharedSlotsGoBackToTheSystem) {
  const auto file = SharedFile::create();
  auto lane = SlotLane::make(file);
  lane->note(8 * kPage);
  std::vector<Lease> leases;
  for (int i = 0; i < 4; ++i) leases.push_back(lane->lend());
  for (const Lease& lease : leases) std::memset(lease->data(), 1, 8 * kPage);
  EXPECT_EQ(pages_of(*file), 32);
  leases.resize(2);
  lane->rest();
  EXPECT_EQ(pages_of(*file), 16);
  leases.resize(1);
  EXPECT_EQ(lane->stats().slots, 1);
  EXPECT_EQ(pages_of(*file), 8);
  EXPECT_EQ(leases[0]->data()[0], std::byte{1});
  lane.reset();
  leases.clear();
  EXPECT_EQ(pages_of(*file), 0);
}

TEST(SlotLane, ALaneThatRestsWorksAgain) {
  const auto lane = SlotLane::make();
  lane->acquire(kPage);
  lane->rest();
  EXPECT_EQ(lane->stats().slots, 0);
  std::byte* const memory = lane->acquire(kPage)->data();
  EXPECT_EQ(lane->acquire(kPage)->data(), memory);
}

TEST(SlotLane, LeasesOutliveTheLane) {
  Lease lease;
  {
    const auto lane = SlotLane::make();
    lease = lane->acquire(kPage);
    lane->rest();
  }
  std::byte* bytes = lease->data();
  std::fill_n(bytes, kPage, std::byte{1});
  EXPECT_EQ(std::count(bytes, bytes + kPage, std::byte{1}), static_cast<int64_t>(kPage));
}

TEST(SlotLane, WhatAForkedChildSeesIsNotWrittenWhileItLives) {
  const auto file = SharedFile::create();
  const auto lane = SlotLane::make(file);
  lane->note(kPage);
  Lease held = lane->lend();
  std::byte* const seen = held->data();
  std::memset(seen, 7, kPage);
  const uint64_t offset = held->offset();
  Child child([&] { return seen[kPage - 1] == std::byte{7}; });
  held.reset();
  const auto use = [&] {
    bool again = false;
    for (int i = 0; i < 200; ++i) {
      const Lease other = lane->lend();
      again |= other->offset() == offset;
      std::memset(other->data(), 8, kPage);
    }
    return again;
  };
  EXPECT_FALSE(use());
  EXPECT_EQ(lane->stats().slots, 2);
  EXPECT_TRUE(child.end());
  use();
  EXPECT_LE(lane->stats().slots, 2);
  EXPECT_LE(pages_of(*file), 2);
}

TEST(SlotLane, AChildKeepsWhatItSeesWhenTheLaneIsGone) {
  const auto file = SharedFile::create();
  auto lane = SlotLane::make(file);
  lane->note(kPage);
  Lease held = lane->lend();
  std::byte* const seen = held->data();
  std::memset(seen, 7, kPage);
  Child child([&] { return seen[0] == std::byte{7}; });
  lane->rest();
  lane.reset();
  held.reset();
  EXPECT_TRUE(child.end());
}

TEST(SlotLane, SlotsThatNoTensorShowsAreNotKeptFromUse) {
  const auto lane = SlotLane::make(SharedFile::create());
  lane->note(kPage);
  Lease lent = lane->lend();
  const uint64_t offset = lent->offset();
  Child child([] { return true; });
  lent.reset();
  EXPECT_EQ(lane->lend()->offset(), offset);
  EXPECT_TRUE(child.end());
}

TEST(SlotLane, ChildrenThatHaveEndedCostNoDescriptors) {
  const auto lane = SlotLane::make(SharedFile::create());
  lane->note(kPage);
  const Lease held = lane->lend();
  held->data();
  const auto free_descriptor = [] {
    const int fd = dup(0);
    close(fd);
    return fd;
  };
  const int before = free_descriptor();
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(Child([] { return true; }).end());
  EXPECT_LE(free_descriptor(), before + 2);
}

TEST(SlotLane, AForkedChildReturnsNothing) {
  const auto file = SharedFile::create();
  auto lane = SlotLane::make(file);
  lane->note(kPage);
  Lease held = lane->lend(), other = lane->lend();
  std::memset(held->data(), 7, kPage);
  std::memset(other->data(), 7, kPage);
  other.reset();
  EXPECT_TRUE(Child([&] {
                const bool same = held->data()[0] == std::byte{7};
                held.reset();
                lane->rest();
                lane.reset();
                return same;
              }).end());
  EXPECT_EQ(lane->stats().held, 1);
  EXPECT_EQ(held->data()[0], std::byte{7});
  EXPECT_EQ(pages_of(*file), 2);
}

TEST(SlotLane, AForkedChildIsRefusedTheSlotsOfItsParent) {
  for (const auto& file : {SharedFile::create(), std::shared_ptr<SharedFile>()}) {
    const auto lane = SlotLane::make(file);
    lane->note(kPage);
    lane->acquire(kPage).reset();
    EXPECT_TRUE(Child([&] {
                  int refused = 0;
                  const auto refuses = [&](const auto& ask) {
                    try {
                      ask();
                    } catch (const std::runtime_error&) {
                      ++refused;
                    }
                  };
                  refuses([&] { lane->note(kPage); });
                  refuses([&] { lane->acquire(kPage); });
                  refuses([&] { lane->lend(); });
                  refuses([&] { lane->adopt(kPage, kPage); });
                  refuses([&] { lane->stats(); });
                  refuses([&] { lane->ranges(); });
                  return refused == 6;
                }).end());
    EXPECT_EQ(lane->stats().slots, 1);
  }
}

TEST(SlotLane, ThreadsForkAndLeaseAtTheSameTime) {
  const auto lane = SlotLane::make(SharedFile::create());
  lane->note(kPage);
  std::atomic<bool> done{false};
  std::atomic<int> torn{0};
  std::vector<std::thread> threads;
  for (unsigned t = 1; t <= 2; ++t) {
    threads.emplace_back([&, t] {
      while (!done.load()) {
        const Lease lease = lane->lend();
        std::memset(lease->data(), static_cast<int>(t), kPage);
        if (lease->data()[kPage - 1] != std::byte(t)) torn.fetch_add(1);
        SlotLane::make(SharedFile::create());
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    Lease held = lane->lend();
    held->data()[0] = std::byte{5};
    EXPECT_TRUE(Child([&] {
                  const bool same = held->data()[0] == std::byte{5};
                  SlotLane::make(SharedFile::create());
                  return same;
                }).end());
  }
  done.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(lane->stats().held, 0);
}

TEST(SlotLane, MappingsAreLeftForOthers) {
  const auto file = SharedFile::create();
  const auto lane = SlotLane::make(file);
  lane->note(kPage);
  std::vector<Lease> held;
  for (int64_t i = 0; i < SlotLane::Slot::kMostMapped; ++i) {
    held.push_back(lane->lend());
    held.back()->data();
  }
  const Lease more = lane->lend();
  EXPECT_THROW(more->data(), std::runtime_error);
  std::memset(file->map(more->offset(), kPage).data(), 6, kPage);
  std::byte copy[16]{};
  more->read(copy, sizeof copy);
  EXPECT_EQ(copy[15], std::byte{6});
  EXPECT_THROW(more->read(copy, kPage + 1), std::invalid_argument);
  held.clear();
  lane->rest();
  EXPECT_EQ(more->data()[0], std::byte{6});
}

TEST(SlotLane, BadSizesAreNamed) {
  const auto lane = SlotLane::make();
  EXPECT_THROW(lane->note(0), std::invalid_argument);
  EXPECT_THROW(lane->acquire(0), std::invalid_argument);
  EXPECT_THROW(lane->acquire(size_t{1} << 61), std::runtime_error);
  EXPECT_EQ(lane->stats().slots, 0);
  EXPECT_EQ(lane->stats().held, 0);
}

TEST(SlotLane, ASizeThatNoFileHasTakesNoRoomFromOthers) {
  const auto lane = SlotLane::make(SharedFile::create());
  EXPECT_THROW(lane->acquire(size_t{1} << 61), std::runtime_error);
  EXPECT_NE(lane->acquire(kPage)->data(), nullptr);
}

}  // namespace
}  // namespace aegis
