#include "core/copy_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace aegis {
namespace {

TEST(CopyRows, AnySizeAndAlignmentAndNothingBeside) {
  std::minstd_rand random(1);
  std::vector<std::byte> source(20'000);
  for (std::byte& byte : source) byte = std::byte(random() % 251 + 1);
  for (int round = 0; round < 2000; ++round) {
    const size_t bytes = random() % (round % 2 == 0 ? 70 : 700), count = random() % 20;
    const size_t start = 64 + random() % 64;
    std::vector<std::byte> out(start + count * bytes + 64), expected(out.size());
    std::vector<const std::byte*> rows;
    for (size_t i = 0; i < count; ++i) {
      rows.push_back(source.data() + random() % (source.size() - bytes));
      std::copy_n(rows[i], bytes, expected.data() + start + i * bytes);
    }
    copy_rows(out.data() + start, rows, bytes);
    ASSERT_EQ(out, expected) << count << " rows of " << bytes << " bytes at " << start;
  }
}

}  // namespace
}  // namespace aegis
