#include "core/kv_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/errors.h"

namespace aegis {
namespace {

using Rows = std::vector<int64_t>;

void append(KvSlots& slots, const Rows& rows, int64_t tokens) {
  slots.begin(rows, tokens);
  slots.commit();
}

void crop(KvSlots& slots, int64_t row, int64_t tokens) { slots.crop(Rows{row}, Rows{tokens}); }

Rows lengths(const KvSlots& slots) {
  Rows all;
  for (int64_t row = 0; row < slots.rows(); ++row) all.push_back(slots.length(row));
  return all;
}

TEST(KvSlots, RowsGrowWhenTheirPassIsCommitted) {
  KvSlots slots(3, 10);
  EXPECT_TRUE(slots.begin(Rows{0, 2}, 4));
  EXPECT_EQ(lengths(slots), (Rows{0, 0, 0}));
  EXPECT_EQ(slots.rows_in_use(), (Rows{0, 2}));
  slots.commit();
  EXPECT_EQ(lengths(slots), (Rows{4, 0, 4}));
  EXPECT_FALSE(slots.begin(Rows{2}, 1));
  slots.commit();
  EXPECT_EQ(slots.length_range(Rows{0, 2}), std::pair(int64_t{4}, int64_t{5}));
  EXPECT_EQ(slots.length_range(Rows{}), std::pair(int64_t{0}, int64_t{0}));
}

TEST(KvSlots, APassThatEndedEarlyLeavesTheLengths) {
  KvSlots slots(1, 10);
  append(slots, {0}, 4);
  slots.begin(Rows{0}, 5);
  slots.begin(Rows{0}, 2);
  slots.commit();
  EXPECT_EQ(slots.length(0), 6);
  slots.begin(Rows{0}, 1);
  slots.abort();
  EXPECT_THROW(slots.commit(), std::logic_error);
  EXPECT_EQ(slots.length(0), 6);
}

TEST(KvSlots, NoRoomNamesNeedAndCapacityAndChangesNothing_case8) {
  KvSlots slots(2, 10);
  append(slots, {0}, 3);
  append(slots, {1}, 8);
  EXPECT_EQ(message_of<std::length_error>([&] { slots.begin(Rows{0, 1}, 3); }),
            "row 1: expected at most 10 tokens, the cache's capacity, got 8 + 3 = 11; nothing was "
            "written");
  EXPECT_THROW(slots.commit(), std::logic_error);
  EXPECT_EQ(lengths(slots), (Rows{3, 8}));
  EXPECT_THROW(slots.begin(Rows{0}, INT64_MAX), std::length_error);
  append(slots, {0, 1}, 2);
  EXPECT_EQ(lengths(slots), (Rows{5, 10}));
}

TEST(KvSlots, RowsComeAndGoWhileOthersStay) {
  KvSlots slots(3, 10);
  EXPECT_EQ(slots.acquire(), 0);
  EXPECT_EQ(slots.acquire(), 1);
  append(slots, {0, 1}, 5);
  slots.release(Rows{0});
  EXPECT_FALSE(slots.in_use(0));
  EXPECT_EQ(lengths(slots), (Rows{0, 5, 0}));
  EXPECT_EQ(slots.acquire(), 0);
  EXPECT_EQ(slots.acquire(), 2);
  EXPECT_EQ(message_of<std::runtime_error>([&] { slots.acquire(); }),
            "acquire: expected a free row, but all 3 are in use");
  slots.reset();
  EXPECT_TRUE(slots.rows_in_use().empty());
  EXPECT_EQ(lengths(slots), (Rows{0, 0, 0}));
}

TEST(KvSlots, CropNeverGoesBelowZero_case9) {
  KvSlots slots(2, 10);
  append(slots, {0, 1}, 6);
  crop(slots, 0, 2);
  EXPECT_EQ(lengths(slots), (Rows{4, 6}));
  crop(slots, 0, 5);
  crop(slots, 1, INT64_MAX);
  EXPECT_EQ(lengths(slots), (Rows{0, 0}));
  EXPECT_THROW(crop(slots, 0, -1), std::invalid_argument);
}

TEST(KvSlots, GatherMovesLengthsAndFreesTheRest) {
  KvSlots slots(4, 10);
  append(slots, {0}, 1);
  append(slots, {1}, 2);
  append(slots, {2}, 3);
  append(slots, {3}, 4);
  slots.gather(Rows{3, 0, 0});
  EXPECT_EQ(lengths(slots), (Rows{4, 1, 1, 0}));
  EXPECT_EQ(slots.rows_in_use(), (Rows{0, 1, 2}));
  EXPECT_THROW(slots.gather(Rows{3}), std::invalid_argument);  // free
  EXPECT_THROW(slots.gather(Rows{4}), std::out_of_range);
  EXPECT_THROW(slots.gather(Rows{0, 0, 0, 0, 0}), std::invalid_argument);
  EXPECT_EQ(lengths(slots), (Rows{4, 1, 1, 0}));
}

using Leftover = std::array<int64_t, 4>;

std::vector<Leftover> leftovers(const KvSlots& slots) {
  std::vector<Leftover> all;
  for (const KvLeftover& l : slots.leftovers()) {
    all.push_back({l.row, l.from, l.touched, l.before});
  }
  return all;
}

TEST(KvSlots, LeftoversAreWhatLiesBehindTheOpenPass) {
  KvSlots slots(3, 20);
  append(slots, {0, 1}, 8);
  EXPECT_TRUE(leftovers(slots).empty());
  crop(slots, 0, 5);
  slots.release(Rows{1});
  slots.begin(Rows{0, 1, 2}, 2);
  const std::vector<Leftover> want{{0, 5, 8, 0}, {1, 2, 2, 8}};
  EXPECT_EQ(leftovers(slots), want);
  slots.abort();
  EXPECT_TRUE(leftovers(slots).empty());
  slots.begin(Rows{0, 1, 2}, 2);
  EXPECT_EQ(leftovers(slots), want);
  slots.commit(true);
  slots.begin(Rows{0, 1, 2}, 1);
  EXPECT_TRUE(leftovers(slots).empty());
}

TEST(KvSlots, LeftoversStayUntilTheyAreClearedOrWrittenOver) {
  KvSlots slots(2, 20);
  slots.begin(Rows{0}, 9);  // and ends early
  slots.touch_free(4);
  slots.begin(Rows{0, 1}, 1);
  EXPECT_EQ(leftovers(slots), (std::vector<Leftover>{{0, 1, 1, 9}, {1, 1, 1, 4}}));
  slots.commit();
  slots.gather(Rows{1, 1});
  slots.begin(Rows{0, 1}, 1);
  EXPECT_EQ(leftovers(slots), (std::vector<Leftover>{{0, 2, 2, 9}, {1, 2, 2, 4}}));
  slots.commit();
  slots.begin(Rows{1}, 2);
  EXPECT_TRUE(leftovers(slots).empty());
  slots.reset();
  slots.begin(Rows{0, 1}, 3);
  EXPECT_EQ(leftovers(slots), (std::vector<Leftover>{{0, 3, 3, 9}, {1, 3, 3, 4}}));
}

TEST(KvSlots, AnEmptyRowIsFilledAgainAfterALongPassThatEndedEarly) {
  KvSlots slots(1, 100, {{8, 6}});
  slots.begin(Rows{0}, 50);
  append(slots, {0}, 3);
  append(slots, {0}, 1);  // the window of those 3 is whole
  EXPECT_EQ(slots.croppable(0), 4);
}

TEST(KvSlots, BadArguments) {
  EXPECT_THROW(KvSlots(0, 1), std::invalid_argument);
  EXPECT_THROW(KvSlots(1, 0), std::invalid_argument);
  EXPECT_THROW(KvSlots(1, 1, {{3, 4}}), std::invalid_argument);
  EXPECT_THROW(KvSlots(1, 1, {{3, 0}}), std::invalid_argument);
  KvSlots slots(2, 10);
  EXPECT_THROW(slots.begin(Rows{0}, -1), std::invalid_argument);
  EXPECT_THROW(slots.begin(Rows{2}, 1), std::out_of_range);
  EXPECT_THROW(slots.begin(Rows{-1}, 1), std::out_of_range);
  EXPECT_THROW(slots.begin(Rows{1, 1}, 1), std::invalid_argument);
  EXPECT_THROW(slots.crop(Rows{0, 1}, Rows{1}), std::invalid_argument);
  EXPECT_THROW(slots.release(Rows{0, 7}), std::out_of_range);
  EXPECT_THROW(slots.length(2), std::out_of_range);
  EXPECT_THROW(slots.croppable(-1), std::out_of_range);
  EXPECT_TRUE(slots.rows_in_use().empty());
}

TEST(KvSlots, AWindowThatHasMovedOnCannotBeTakenBack) {
  constexpr int64_t kWindow = 4, kRollback = 3;
  KvSlots slots(1, 1000, {{kWindow + kRollback + 1, kWindow}});
  append(slots, {0}, 8);
  EXPECT_EQ(slots.croppable(0), 8) << "it has not wrapped";
  for (int i = 0; i < 20; ++i) append(slots, {0}, 1);
  EXPECT_GE(slots.croppable(0), kRollback);
  const int64_t room = slots.croppable(0);
  EXPECT_EQ(message_of<std::invalid_argument>([&] { crop(slots, 0, room + 1); }),
            "row 0: expected to lose at most " + std::to_string(room) +
                " of its 28 tokens, since a sliding layer no longer holds the window before them, "
                "got " +
                std::to_string(room + 1));
  EXPECT_EQ(slots.length(0), 28);
  crop(slots, 0, room);
  EXPECT_EQ(slots.croppable(0), 0);
  append(slots, {0}, 1);  // rewrites what it had written: no more is lost, no more can be taken
  EXPECT_EQ(slots.croppable(0), 1);
  crop(slots, 0, 29);
  EXPECT_EQ(slots.length(0), 0);
}

TEST(KvSlots, AnInterruptedPassThatOverwroteTheWindowIsNoticed) {
  KvSlots slots(2, 1000, {{6, 4}});
  append(slots, {0, 1}, 20);
  slots.begin(Rows{0}, 2);  // dies; what it wrote can be written again
  append(slots, {0}, 1);
  slots.begin(Rows{0}, 5);  // dies over positions that the next query would see
  EXPECT_NE(message_of<std::invalid_argument>([&] {
              slots.begin(Rows{0}, 1);
            }).find("a forward pass that was not completed"),
            std::string::npos);
  append(slots, {1}, 1);
  slots.release(Rows{0});
  append(slots, {0}, 30);
  EXPECT_EQ(lengths(slots), (Rows{30, 21}));
}

/// A row as what it is: which position each slot of a window's buffer was last written for.
struct Model {
  int64_t length = 0;
  std::map<int64_t, int64_t> slots;
};

TEST(KvSlots, AcceptsACropExactlyWhenTheWindowIsStillThere) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t window = 1 + static_cast<int64_t>(random() % 6);
    const int64_t count = window + static_cast<int64_t>(random() % 5);
    KvSlots slots(1, 500, {{count, window}});
    Model model;
    slots.acquire();
    for (int step = 0; step < 60; ++step) {
      const auto n = static_cast<int64_t>(random() % 4);
      if (random() % 2 == 0) {
        append(slots, {0}, n);
        for (int64_t i = 0; i < n; ++i, ++model.length) {
          model.slots[model.length % count] = model.length;
        }
        continue;
      }
      const int64_t length = std::max<int64_t>(model.length - n, 0);
      bool whole = true;  // all that a query at `length` sees besides itself
      for (int64_t p = std::max<int64_t>(length - window + 1, 0); p < length; ++p) {
        whole = whole && model.slots[p % count] == p;
      }
      if (whole) {
        crop(slots, 0, n);
        model.length = length;
      } else {
        ASSERT_THROW(crop(slots, 0, n), std::invalid_argument)
            << window << " of " << count << ", " << model.length << " - " << n;
      }
      ASSERT_EQ(slots.length(0), model.length);
    }
  }
}

}  // namespace
}  // namespace aegis
