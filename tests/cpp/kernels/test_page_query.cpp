#include "kernels/page_query.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

/// Pages with few different numbers, so that every predicate splits them and epochs are equal.
struct Pages {
  std::vector<uint8_t> flags, frequencies;
  std::vector<uint32_t> epochs, owners, references;

  explicit Pages(size_t count, uint32_t seed = 1) {
    std::mt19937 random(seed);
    const uint32_t numbers[] = {0, 1, 2, 0x7fffffff, 0x80000000, UINT32_MAX};
    for (size_t i = 0; i < count; ++i) {
      flags.push_back(static_cast<uint8_t>(random() % 8));
      frequencies.push_back(static_cast<uint8_t>(random() % 3 * 127));
      epochs.push_back(numbers[random() % 6]);
      owners.push_back(numbers[random() % 6]);
      references.push_back(random() % 4);
    }
  }

  PageQuery query() const {
    return {flags.data(),      epochs.data(),      owners.data(),
            references.data(), frequencies.data(), static_cast<int64_t>(flags.size())};
  }
};

std::vector<PageQuery> queries(const Pages& pages) {
  std::vector<PageQuery> all(9, pages.query());
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
  return all;
}

class PageQueryTest : public EveryIsa {};

TEST_P(PageQueryTest, IsTheOraclesForEverySizeAndPredicate) {
  const PageQueryKernel oracle = page_query_kernel(Isa::scalar),
                        kernel = page_query_kernel(GetParam());
  for (size_t count = 0; count < 200; ++count) {
    const Pages pages(count, static_cast<uint32_t>(count));
    for (const PageQuery& query : queries(pages)) {
      std::vector<uint64_t> want((count + 63) / 64 + 1, 7), got = want;
      oracle.mask(query, want.data());
      kernel.mask(query, got.data());
      ASSERT_EQ(got, want) << count;
      ASSERT_EQ(kernel.oldest(query), oracle.oldest(query)) << count;
    }
  }
}

TEST_P(PageQueryTest, TheOldestIsTheFirstOfTheLeastEpoch) {
  Pages pages(1000);
  pages.epochs.assign(1000, UINT32_MAX);
  pages.flags.assign(1000, 0);
  const PageQueryKernel kernel = page_query_kernel(GetParam());
  PageQuery query = pages.query();
  EXPECT_EQ(kernel.oldest(query), 0) << "also where every epoch is the greatest";
  query.flag_mask = query.flag_value = 1;
  pages.flags[990] = pages.flags[999] = 1;
  EXPECT_EQ(kernel.oldest(query), 990);
  pages.flags[990] = 0;
  EXPECT_EQ(kernel.oldest(query), 999);
  pages.flags[999] = query.flag_mask = query.flag_value = 0;
  pages.epochs[700] = pages.epochs[301] = pages.epochs[302] = 5;
  EXPECT_EQ(kernel.oldest(query), 301);
  pages.flags[301] = 1;
  query.flag_mask = 1;
  EXPECT_EQ(kernel.oldest(query), 302);
  query.flag_mask = query.flag_value = 2;
  EXPECT_EQ(kernel.oldest(query), -1);
}

AEGIS_EVERY_ISA(PageQueryTest);

}  // namespace
}  // namespace aegis::kernels
