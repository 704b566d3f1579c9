// What promises to change nothing when it throws keeps that where memory runs out. In this program
// a test can make any operator new fail.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <numeric>
#include <vector>

#include "core/kv_slots.h"
#include "core/page_table.h"

namespace {

int news_left = -1;  // that succeed; below 0: all do

}  // namespace

// Not inlined: where gcc inlines only one of a pair, it warns of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (news_left == 0) throw std::bad_alloc();
  if (news_left > 0) --news_left;
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace aegis {
namespace {

using Tokens = std::vector<uint32_t>;

Tokens count(uint32_t first, size_t size) {
  Tokens tokens(size);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// Calls `change` on copies of `before`, in which the first, the second ... operator new fails,
/// until none does any more, and `same` on each that threw. Returns how many did.
template <class State>
int fail_at_every_new(const State& before, const std::function<void(State&)>& change,
                      const std::function<void(const State&)>& same) {
  for (int succeed = 0;; ++succeed) {
    State state(before);
    news_left = succeed;
    try {
      change(state);
      news_left = -1;
      return succeed;
    } catch (const std::bad_alloc&) {
      news_left = -1;
      same(state);
    }
  }
}

class PageTableOutOfMemory : public testing::Test {
 protected:
  void SetUp() override {
#ifndef NDEBUG
    GTEST_SKIP() << "every change is followed by a check that needs memory";
#endif
    table_.begin(1, count(0, 40));
    table_.begin(2, count(0, 6));
    table_.begin(3, count(100, 9));
    table_.fork(2, 4);
    table_.free(3);
  }

  void check(const std::function<void(PageTable&)>& change) {
    const int failed = fail_at_every_new<PageTable>(table_, change, [&](const PageTable& table) {
      table.check_invariants();
      EXPECT_EQ(table.free_pages(), table_.free_pages());
      EXPECT_EQ(table.evictable_pages(), table_.evictable_pages());
      for (uint32_t sequence = 0; sequence < 8; ++sequence) {
        ASSERT_EQ(table.has(sequence), table_.has(sequence)) << sequence;
        if (!table.has(sequence)) continue;
        EXPECT_EQ(table.length(sequence), table_.length(sequence)) << sequence;
      }
    });
    EXPECT_GT(failed, 0) << "it never asked for memory";
  }

  PageTable table_{64, 4, PageTable::Eviction::lru};
};

TEST_F(PageTableOutOfMemory, BeginsNoSequence) {
  check([](PageTable& table) { table.begin(5, count(0, 60)); });
}

TEST_F(PageTableOutOfMemory, AppendsNothing) {
  check([](PageTable& table) { table.append(4, count(50, 60)); });
}

TEST_F(PageTableOutOfMemory, ExtendsNone) {
  check([](PageTable& table) {
    const Tokens sequences{1, 2, 4};
    table.extend(sequences, std::vector<int64_t>{70, 30, 40});
  });
}

TEST_F(PageTableOutOfMemory, ForksNothing) {
  check([](PageTable& table) { table.fork(1, 6); });
}

TEST(KvSlotsOutOfMemory, BeginsNoPass) {
  KvSlots slots(8, 100);
  slots.begin(std::vector<int64_t>{0}, 10);
  slots.commit();
  const int failed = fail_at_every_new<KvSlots>(
      slots, [](KvSlots& s) { s.begin(std::vector<int64_t>{0, 1, 2, 3}, 20); },
      [](const KvSlots& s) { EXPECT_EQ(s.rows_in_use(), std::vector<int64_t>{0}); });
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace aegis
