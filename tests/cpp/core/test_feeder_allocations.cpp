// Every operator new in this program is counted while a test looks.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "core/fake_filler.h"
#include "core/feeder.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> news{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) news.fetch_add(1, std::memory_order_relaxed);
  bytes = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, bytes > 0 ? bytes : alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The other forms of new and delete end in these. Not inlined: where gcc inlines only one of a
// pair, it warns of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return counted(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace aegis {
namespace {

TEST(FeederAllocations, TheCounterCounts) {
  const int before = news.load();
  counting.store(true);
  auto one = std::make_unique<Schedule>(ScheduleOptions{1, 1});
  SlotPool::make(64, 1);  // inside the library
  counting.store(false);
  EXPECT_GE(news.load() - before, 3);
}

class FeederAllocations : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Threads, FeederAllocations, testing::Values(0, 1, 2, 4),
                         testing::PrintToStringParamName());

constexpr int kBatches = 1000, kWarmUp = 200;

TEST_P(FeederAllocations, NoneForABatchOfASchedule) {
  FakeFeed feed(1 << 20, {GetParam(), 4});
  feed->follow(Schedule({1 << 20, 16}, 1, 2));
  for (int i = 0; i < kWarmUp; ++i) feed->take();
  const int before = news.load();
  counting.store(true);
  for (int i = 0; i < kBatches; ++i) feed->take();
  counting.store(false);
  EXPECT_EQ(news.load() - before, 0);
  EXPECT_EQ(feed->stats().native_allocations, 0);
}

TEST_P(FeederAllocations, NoneForASubmittedBatchNorForCopiesOfItsLease) {
  FakeFeed feed(1000, {GetParam(), 4});
  const std::vector<int64_t> indices(64, -3);
  SlotLease kept;
  const auto turn = [&] {
    while (!feed->full()) feed->submit(indices.data(), 64);
    const Batch batch = feed->take();
    kept = batch.lease;
  };
  for (int i = 0; i < kWarmUp; ++i) turn();
  const int before = news.load();
  counting.store(true);
  for (int i = 0; i < kBatches; ++i) turn();
  counting.store(false);
  EXPECT_EQ(news.load() - before, 0);
  EXPECT_EQ(feed->stats().native_allocations, 0);
}

TEST_P(FeederAllocations, ReportedWhenTheConsumerKeepsEverySlot) {
  FakeFeed feed(1000, {GetParam(), 2});
  feed->follow(Schedule({1000, 10}));
  std::vector<Batch> held;
  for (int i = 0; i < 50; ++i) held.push_back(feed->take());
  EXPECT_GE(feed->stats().native_allocations, 50 - 2 * 2 - 1);
}

}  // namespace
}  // namespace aegis
