// PageTable against its own invariants; tests/python/decode/test_page_table.py has a model of it.
#include "core/page_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace aegis {
namespace {

using Eviction = PageTable::Eviction;
using Tokens = std::vector<uint32_t>;

Tokens count(uint32_t first, size_t size) {
  Tokens tokens(size);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(PageTable, AHundredSequencesWithACommonPrefixUseFewerThanFivePercentMore) {
  PageTable table(4096, 16, Eviction::lru);
  EXPECT_EQ(table.begin(0, count(0, 1000)), 0);
  const int64_t one = table.pages() - table.free_pages();
  EXPECT_EQ(one, 63);
  for (uint32_t sequence = 1; sequence < 100; ++sequence) {
    EXPECT_EQ(table.begin(sequence, count(0, 1000)), 1000);
  }
  EXPECT_EQ(table.pages() - table.free_pages(), one);
  EXPECT_EQ(table.begin(100, count(0, 999)), 992) << "a last block of other length is its own";
  EXPECT_LT(table.pages() - table.free_pages(), one * 1.05);
}

TEST(PageTable, WritingASharedPageTakesACopy) {
  PageTable table(8, 4, Eviction::lru);
  table.begin(1, count(0, 6));
  table.fork(1, 2);
  const PageTable::Copy copy = table.append(2, count(50, 1));
  EXPECT_EQ(copy.from, table.pages_of(1)[1]);
  EXPECT_EQ(copy.to, table.pages_of(2)[1]);
  EXPECT_NE(copy.from, copy.to);
  EXPECT_EQ(table.append(1, count(6, 1)).from, PageTable::kNoPage) << "nobody else holds it now";
  EXPECT_EQ(table.pages_of(1)[0], table.pages_of(2)[0]);
  EXPECT_EQ(table.counts().copied, 1);
  table.check_invariants();
}

TEST(PageTable, EvictsTheOldestButNotWhatIsPinnedOrOftenShared_case58) {
  for (Eviction eviction : {Eviction::lru, Eviction::frequency}) {
    PageTable table(8, 2, eviction);
    const Tokens hot = count(0, 4);
    for (uint32_t user = 0; user < 5; ++user) {
      table.begin(user, hot);
      table.free(user);
    }
    EXPECT_EQ(table.evictable_pages(), 2);
    for (uint32_t user = 0; user < 6; ++user) {  // a burst of texts that come once
      table.begin(user, count(100 * (user + 1), 4));
      table.free(user);
    }
    EXPECT_EQ(table.begin(9, hot), eviction == Eviction::frequency ? 4 : 0);
    table.pin(9);
    const Tokens pinned(table.pages_of(9).begin(), table.pages_of(9).end());
    table.free(9);
    for (uint32_t user = 0; user < 20; ++user) {
      table.begin(user, count(1000 * (user + 1), 4));
      table.free(user);
    }
    EXPECT_EQ(table.begin(9, hot), 4);
    table.free(9);
    table.unpin(pinned);
    EXPECT_THROW(table.unpin(pinned), std::invalid_argument);
    table.check_invariants();
  }
}

TEST(PageTable, TokensCanBeToldAfterTheirPagesWereTaken) {
  PageTable table(8, 4, Eviction::lru);
  for (uint32_t sequence : {1, 2}) table.begin(sequence, {});
  const std::vector<uint32_t> both{1, 2};
  EXPECT_TRUE(table.extend(both, std::vector<int64_t>{10, 6}).empty());
  EXPECT_EQ(table.lookup(count(0, 8)), 0) << "nobody said what they are";
  table.tell(1, count(0, 6));
  EXPECT_EQ(table.known(1), 6);
  EXPECT_EQ(table.lookup(count(0, 8)), 4) << "full blocks alone";
  table.tell(1, count(6, 4));
  EXPECT_EQ(table.lookup(count(0, 12)), 8);
  table.append(2, count(9, 4));  // behind tokens that are not known
  EXPECT_EQ(table.known(2), 0);
  EXPECT_EQ(table.begin(3, count(0, 8)), 8);
  EXPECT_EQ(table.pages_of(3)[1], table.pages_of(1)[1]);
  table.crop(1, 5);
  EXPECT_EQ(table.known(1), 5);
  EXPECT_EQ(table.extend(both, std::vector<int64_t>{6, 10}).size(), 1u) << "the page is shared";
  EXPECT_THROW(table.tell(1, count(0, 2)), std::invalid_argument);
  table.check_invariants();
}

TEST(PageTable, WhatIsTrimmedIsGivenBackAndCanStillBeShared) {
  PageTable table(8, 4, Eviction::lru);
  table.begin(1, count(0, 18));
  table.fork(1, 2);
  EXPECT_FALSE(table.trim(1, 3)) << "no page holds those alone";
  EXPECT_TRUE(table.trim(1, 11));
  EXPECT_FALSE(table.trim(1, 8));
  EXPECT_EQ(table.trimmed(1), 8);
  EXPECT_EQ(table.length(1), 18);
  EXPECT_EQ(table.pages_of(1)[1], PageTable::kNoPage);
  EXPECT_EQ(table.pages_of(1)[2], table.pages_of(2)[2]);
  EXPECT_EQ(table.evictable_pages(), 0) << "the fork holds them";
  table.free(2);
  EXPECT_EQ(table.evictable_pages(), 2);
  EXPECT_EQ(table.lookup(count(0, 16)), 16);

  EXPECT_THROW(table.crop(1, 8), std::invalid_argument) << "its last page would be none";
  EXPECT_THROW(table.trim(1, 19), std::invalid_argument);
  EXPECT_THROW(table.trim(1, -1), std::invalid_argument);
  EXPECT_THROW(table.trim(7, 0), std::out_of_range);
  table.crop(1, 9);
  table.append(1, count(50, 4));
  table.fork(1, 3);
  EXPECT_EQ(table.trimmed(3), 8);
  EXPECT_TRUE(table.trim(3, 13)) << "all of its full blocks";
  table.pin(3);
  const Tokens pinned(table.pages_of(3).begin() + 3, table.pages_of(3).end());
  table.free(3);
  table.unpin(pinned);
  table.crop(1, 0);
  EXPECT_EQ(table.trimmed(1), 0);
  table.append(1, count(0, 2));
  table.check_invariants();
}

TEST(PageTable, ATextOfMoreBlocksThanThereArePagesNeedsRoomLikeAnyOther) {
  for (Eviction eviction : {Eviction::none, Eviction::lru}) {
    PageTable table(4, 2, eviction);
    for (uint32_t sequence : {1, 2}) table.begin(sequence, {});
    const std::vector<uint32_t> long_one{1}, both{1, 2};
    const auto extend_to = [&](int64_t length) {
      table.extend(long_one, std::vector<int64_t>{length});
    };
    for (int64_t length = 2; length <= 40; length += 2) {  // 20 blocks, one of them there
      extend_to(length);
      table.trim(1, length - 2);
    }
    EXPECT_EQ(table.free_pages() + table.evictable_pages(), 3);
    EXPECT_THROW(extend_to(48), PagesExhausted);
    EXPECT_THROW(extend_to(INT64_MAX), PagesExhausted);
    EXPECT_THROW(table.extend(both, std::vector<int64_t>{46, 2}), PagesExhausted);
    EXPECT_THROW(table.expect_room(both, std::vector<int64_t>{42, 6}), PagesExhausted);
    EXPECT_EQ(table.length(1), 40);
    table.extend(both, std::vector<int64_t>{44, 2});
    EXPECT_THROW(extend_to(46), PagesExhausted);
    table.check_invariants();
  }
}

TEST(PageTable, TokensThatAreToldAfterTheirPagesWentAreNotFound) {
  PageTable table(8, 4, Eviction::lru);
  table.begin(1, {});
  const std::vector<uint32_t> one{1};
  table.extend(one, std::vector<int64_t>{14});
  table.trim(1, 5);
  EXPECT_EQ(table.free_pages(), 5) << "nobody could share what nobody knew";
  table.tell(1, count(0, 14));
  EXPECT_EQ(table.known(1), 14);
  EXPECT_EQ(table.lookup(count(0, 12)), 0);
  EXPECT_EQ(table.lookup(count(4, 8)), 0);
  table.check_invariants();
  table.expect_room(one, std::vector<int64_t>{36});
  EXPECT_THROW(table.expect_room(one, std::vector<int64_t>{37}), PagesExhausted);
  EXPECT_EQ(table.length(1), 14);
}

TEST(PageTable, ExtendsAllSequencesOrNone) {
  PageTable table(4, 4, Eviction::none);
  table.begin(0, count(0, 6));
  table.fork(0, 1);
  const std::vector<uint32_t> both{0, 1};
  EXPECT_THROW(table.extend(both, std::vector<int64_t>{7, 17}), PagesExhausted);
  EXPECT_EQ(table.length(0), 6);
  EXPECT_EQ(table.free_pages(), 2);
  // Both write into the page that both hold: one takes a copy, the other keeps it.
  const auto copies = table.extend(both, std::vector<int64_t>{12, 8});
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, table.pages_of(1)[1]);
  EXPECT_EQ(copies[0].to, table.pages_of(0)[1]);
  EXPECT_EQ(table.free_pages(), 0);
  EXPECT_TRUE(table.extend(both, std::vector<int64_t>{12, 3}).empty()) << "long enough already";
  EXPECT_THROW(table.extend(both, std::vector<int64_t>{1}), std::invalid_argument);
  table.check_invariants();
}

TEST(PageTable, LengthsThatNoTableHasRoomForAreRefused) {
  for (const int64_t block_size : {1, 4}) {
    PageTable table(4, block_size, Eviction::lru);
    for (uint32_t sequence : {0, 1, 2}) table.begin(sequence, {});
    const std::vector<uint32_t> all{0, 1, 2};
    for (const int64_t length : {INT64_MAX, INT64_MAX / 3 + 1, 5 * block_size}) {
      const std::vector<int64_t> lengths(3, length);
      EXPECT_THROW(table.extend(all, lengths), PagesExhausted) << length;
      EXPECT_EQ(table.free_pages(), 4);
    }
    table.check_invariants();
  }
}

TEST(PageTable, OutOfPagesChangesNothing) {
  PageTable table(4, 2, Eviction::lru);
  table.begin(1, count(0, 4));
  table.begin(2, count(0, 3));
  const auto unchanged = [&] {
    table.check_invariants();
    return table.free_pages() == 1 && table.length(1) == 4 && table.length(2) == 3 && !table.has(3);
  };
  EXPECT_EQ(
      message_of<PagesExhausted>([&] { table.begin(3, count(9, 5)); }),
      "pages: expected 3 to be free or evictable, but 1 are free and 0 evictable, of 4; nothing "
      "was changed");
  EXPECT_TRUE(unchanged());
  EXPECT_THROW(table.append(2, count(0, 4)), PagesExhausted);
  EXPECT_TRUE(unchanged());
  EXPECT_THROW(table.begin(1, count(0, 1)), std::invalid_argument);
  EXPECT_THROW(table.begin(PageTable::kNobody, count(0, 1)), std::invalid_argument);
  EXPECT_THROW(table.append(3, count(0, 1)), std::out_of_range);
  EXPECT_THROW(table.crop(1, 5), std::invalid_argument);
  EXPECT_THROW(table.crop(1, -1), std::invalid_argument);
  EXPECT_THROW(table.fork(3, 4), std::out_of_range);
  EXPECT_THROW(table.fork(1, 2), std::invalid_argument);
  EXPECT_THROW(table.free(3), std::out_of_range);
  EXPECT_THROW(table.descriptor(4), std::out_of_range);
  EXPECT_THROW(table.release(table.pages_of(1)[0]), std::invalid_argument) << "a sequence's";
  EXPECT_THROW(table.allocate(PageTable::kNobody), std::invalid_argument);
  EXPECT_THROW(PageTable(0, 1, Eviction::lru), std::invalid_argument);
  EXPECT_THROW(PageTable(1, 0, Eviction::lru), std::invalid_argument);
  const uint32_t page = table.allocate(7);
  EXPECT_EQ(table.descriptor(page).owner, 7u);
  EXPECT_THROW(table.allocate(7), PagesExhausted);
  table.release(page);
  EXPECT_EQ(
      message_of<std::invalid_argument>([&] { table.release(page); }),
      "page " + std::to_string(page) + ": expected one that is held, got one that was given back");
  EXPECT_TRUE(unchanged());
}

TEST(PageTable, HoldsTogetherOverManyRandomCalls) {
  for (Eviction eviction : {Eviction::none, Eviction::lru, Eviction::frequency}) {
    PageTable table(40, 3, eviction);
    std::map<uint32_t, Tokens> texts;
    std::mt19937 random(static_cast<uint32_t>(eviction));
    const auto some = [&] {
      Tokens tokens(random() % 12);
      for (uint32_t& token : tokens) token = random() % 2;
      return tokens;
    };
    uint32_t next = 0;
    for (int step = 0; step < 20'000; ++step) {
      auto it = texts.begin();
      if (!texts.empty()) std::advance(it, random() % texts.size());
      try {
        const uint32_t what = texts.empty() ? 0 : random() % 7;
        if (what == 0) {
          const Tokens tokens = some();
          EXPECT_LE(table.begin(next, tokens), std::ssize(tokens));
          texts[next++] = tokens;
        } else if (what == 1) {
          const Tokens tokens = some();
          table.append(it->first, tokens);
          it->second.insert(it->second.end(), tokens.begin(), tokens.end());
        } else if (what == 2) {
          size_t length = random() % (it->second.size() + 1);
          if (std::cmp_less_equal(length, table.trimmed(it->first))) length = 0;
          table.crop(it->first, static_cast<int64_t>(length));
          it->second.resize(length);
        } else if (what == 3) {
          table.fork(it->first, next);
          texts[next++] = it->second;
        } else if (what == 4) {
          const auto size = static_cast<int64_t>(it->second.size());
          table.trim(it->first, size - std::min<int64_t>(size, random() % 8));
        } else {
          table.free(it->first);
          texts.erase(it);
        }
      } catch (const PagesExhausted&) {
      }
      if (step % 16 == 0) table.check_invariants();
    }
    for (const auto& [sequence, tokens] : texts) {
      ASSERT_EQ(table.length(sequence), std::ssize(tokens));
      table.free(sequence);
    }
    table.check_invariants();
    EXPECT_EQ(table.free_pages() + table.evictable_pages(), 40);
  }
}

TEST(PageIndex, HoldsWhatAMapDoesThoughKeysAgreeInPart) {
  constexpr uint32_t kPages = 50;
  PageIndex index(kPages);
  std::map<uint64_t, uint32_t> map;
  std::vector<uint64_t> key_of(kPages);
  std::mt19937 random(1);
  const auto find = [&](uint64_t key) {
    return index.find(key, [&](uint32_t page) { return key_of[page] == key; });
  };
  for (int step = 0; step < 20'000; ++step) {
    // Few lower halves, two of them at the table's end; equal ones under different upper halves.
    const uint64_t key = uint64_t{random() % 3} << 32 | (125 + random() % 20);
    const uint32_t page = random() % kPages;
    const auto found = map.find(key);
    ASSERT_EQ(find(key), found == map.end() ? PageIndex::kNoPage : found->second);
    const bool in_use = std::any_of(map.begin(), map.end(),
                                    [&](const auto& entry) { return entry.second == page; });
    if (found != map.end()) {
      index.erase(key, found->second);
      map.erase(found);
    } else if (!in_use) {
      key_of[page] = key;
      index.insert(key, page);
      map[key] = page;
    }
    ASSERT_EQ(index.size(), std::ssize(map));
    if (step % 100 == 0) {
      for (const auto& [held, its] : map) ASSERT_EQ(find(held), its);
    }
  }
}

}  // namespace
}  // namespace aegis
