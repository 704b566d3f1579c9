#include "kernels/page_query.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

/// Pages with few different numbers, so that every predicate splits them and epochs are equal.
struct Pages {
  int64_t count;
  std::vector<uint64_t> flags;
  std::vector<uint8_t> frequencies;
  std::vector<uint32_t> epochs, owners, references;

  explicit Pages(int64_t pages, uint32_t seed = 1) : count(pages) {
    std::mt19937 random(seed);
    const uint32_t numbers[] = {0, 1, 2, 0x7fffffff, 0x80000000, UINT32_MAX};
    for (int64_t i = 0; i < kFlagPlanes * blocks(); ++i) {
      flags.push_back(uint64_t{random()} << 32 | random());
    }
    for (int64_t i = 0; i < kPagesOfABlock * blocks(); ++i) {
      frequencies.push_back(static_cast<uint8_t>(random() % 3 * 127));
      epochs.push_back(numbers[random() % 6]);
      owners.push_back(numbers[random() % 6]);
      references.push_back(random() % 4);
    }
  }

  int64_t blocks() const { return (count + kPagesOfABlock - 1) / kPagesOfABlock; }
  bool has(int64_t page, int flag) const {
    return flags[static_cast<size_t>(flag * blocks() + page / 64)] >> page % 64 & 1;
  }
  void set(int64_t page, int flag, bool on) {
    uint64_t& word = flags[static_cast<size_t>(flag * blocks() + page / 64)];
    word = (word & ~(uint64_t{1} << page % 64)) | uint64_t{on} << page % 64;
  }

  PageQuery query() const {
    return {flags.data(),      epochs.data(),      owners.data(),
            references.data(), frequencies.data(), count};
  }
};

std::vector<PageQuery> queries(const Pages& pages) {
  std::vector<PageQuery> all(11, pages.query());
  all[1].flag_mask = 5;
  all[1].flag_value = 1;
  all[2].any_owner = false;
  all[2].owner = UINT32_MAX;
  all[3].least_epoch = 2;
  all[4].most_epoch = 0x7fffffff;
  all[5].least_references = 1;
  all[5].most_references = 2;
  all[6].least_frequency = 128;
  all[7] = all[1];
  all[7].any_owner = false;
  all[7].owner = 2;
  all[7].least_epoch = 1;
  all[7].most_epoch = 0x80000000;
  all[7].most_references = 2;
  all[7].most_frequency = 127;
  all[8].flag_mask = 1;
  all[8].flag_value = 2;  // of no page
  all[9].flag_mask = 0xff;
  all[9].flag_value = 0x13;
  all[10].flag_mask = all[10].flag_value = 0x20;  // a flag that there is not
  return all;
}

class PageQueryTest : public EveryIsa {};

TEST_P(PageQueryTest, IsTheOraclesForEverySizeAndPredicate) {
  const PageQueryKernel oracle = page_query_kernel(Isa::scalar),
                        kernel = page_query_kernel(GetParam());
  for (int64_t count = 0; count < 200; ++count) {
    const Pages pages(count, static_cast<uint32_t>(count));
    for (const PageQuery& query : queries(pages)) {
      std::vector<uint64_t> want(static_cast<size_t>(pages.blocks()) + 1, 7), got = want;
      oracle.mask(query, want.data());
      kernel.mask(query, got.data());
      ASSERT_EQ(got, want) << count;
      ASSERT_EQ(kernel.oldest(query), oracle.oldest(query)) << count;
    }
  }
}

TEST_P(PageQueryTest, TheOldestIsTheFirstOfTheLeastEpoch) {
  Pages pages(1000);
  pages.epochs.assign(pages.epochs.size(), UINT32_MAX);
  pages.flags.assign(pages.flags.size(), 0);
  const PageQueryKernel kernel = page_query_kernel(GetParam());
  PageQuery query = pages.query();
  EXPECT_EQ(kernel.oldest(query), 0) << "also where every epoch is the greatest";
  query.flag_mask = query.flag_value = 1;
  pages.set(990, 0, true);
  pages.set(999, 0, true);
  EXPECT_EQ(kernel.oldest(query), 990);
  pages.set(990, 0, false);
  EXPECT_EQ(kernel.oldest(query), 999);
  pages.set(999, 0, false);
  query.flag_mask = query.flag_value = 0;
  pages.epochs[700] = pages.epochs[301] = pages.epochs[302] = 5;
  EXPECT_EQ(kernel.oldest(query), 301);
  pages.set(301, 0, true);
  query.flag_mask = 1;
  EXPECT_EQ(kernel.oldest(query), 302);
  query.flag_mask = query.flag_value = 2;
  EXPECT_EQ(kernel.oldest(query), -1);
}

TEST_P(PageQueryTest, BoundsChangeNoAnswerAndAreRaisedToWhatIsThere) {
  constexpr int kFlag = 1;
  std::mt19937 random(2);
  const PageQueryKernel oracle = page_query_kernel(Isa::scalar),
                        kernel = page_query_kernel(GetParam());
  for (const int64_t count : {1, 64, 65, 4096, 9000}) {
    for (const uint32_t epochs : {1u, 5u, 100'000u}) {
      Pages pages(count, static_cast<uint32_t>(count));
      for (uint32_t& epoch : pages.epochs) epoch = random() % epochs;
      // Bounds of whole 64 blocks: exact, too low, and where there is no such page anything.
      std::vector<uint32_t> least(static_cast<size_t>((pages.blocks() + 63) / 64 * 64), UINT32_MAX);
      for (int64_t p = 0; p < count; ++p) {
        if (!pages.has(p, kFlag)) continue;
        uint32_t& bound = least[static_cast<size_t>(p / 64)];
        bound = std::min(bound, pages.epochs[static_cast<size_t>(p)]);
      }
      for (PageQuery query : queries(pages)) {
        std::vector<uint32_t> bounds = least;
        for (uint32_t& bound : bounds) bound = random() % 3 == 0 ? bound / 2 : bound;
        query.bounds = bounds.data();
        query.bounded = 1 << kFlag;
        ASSERT_EQ(kernel.oldest(query), oracle.oldest(query)) << count << " pages, any flags";
        query.flag_mask |= 1 << kFlag;
        query.flag_value |= 1 << kFlag;
        for (int again = 0; again < 2; ++again) {
          ASSERT_EQ(kernel.oldest(query), oracle.oldest(query)) << count << " pages";
        }
        for (int64_t b = 0; b < pages.blocks(); ++b) {
          ASSERT_LE(bounds[static_cast<size_t>(b)], least[static_cast<size_t>(b)]) << count;
        }
      }
    }
  }
}

AEGIS_EVERY_ISA(PageQueryTest);

}  // namespace
}  // namespace aegis::kernels
