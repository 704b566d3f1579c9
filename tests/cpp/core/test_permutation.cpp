#include "core/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "core/errors.h"

namespace aegis {
namespace {

constexpr uint64_t kMost = uint64_t{1} << 63;

std::vector<uint64_t> values(uint64_t n, uint64_t seed, uint64_t epoch) {
  const Permutation order(n, seed, epoch);
  std::vector<uint64_t> out(n);
  for (uint64_t i = 0; i < n; ++i) out[i] = order(i);
  return out;
}

bool is_bijection(const std::vector<uint64_t>& image) {
  std::vector<bool> seen(image.size());
  for (uint64_t value : image) {
    if (value >= image.size() || seen[value]) return false;
    seen[value] = true;
  }
  return true;
}

/// The value that a χ² variable of `freedom` degrees exceeds with probability 3e-7: five standard
/// deviations in the approximation of Wilson and Hilferty (1931).
double chi_squared_limit(double freedom) {
  const double spread = 2 / (9 * freedom);
  return freedom * std::pow(1 - spread + 5 * std::sqrt(spread), 3);
}

TEST(Permutation, IsABijectionForEverySmallSize) {
  for (uint64_t n = 1; n <= 300; ++n) {
    for (uint64_t seed : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
      for (uint64_t epoch : {uint64_t{0}, uint64_t{7}}) {
        ASSERT_TRUE(is_bijection(values(n, seed, epoch))) << n << " " << seed << " " << epoch;
      }
    }
  }
}

TEST(Permutation, IsABijectionForLargerSizes) {
  for (uint64_t n : {1000, 4095, 4096, 4097, 65'536, 65'537, 100'003, 1 << 20}) {
    ASSERT_TRUE(is_bijection(values(n, 42, 3))) << n;
  }
}

TEST(Permutation, HugeSizesStayInRangeAndDistinct_case17) {
  for (uint64_t n : {kMost, kMost - 1, kMost / 2 + 1, (uint64_t{1} << 32) + 1, uint64_t{1} << 31}) {
    const Permutation order(n, 1, 2);
    EXPECT_EQ(order.size(), n);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 2000; ++i) {
      for (uint64_t position : {i, n - 1 - i, n / 2 + i}) {
        const uint64_t value = order(position);
        ASSERT_LT(value, n);
        ASSERT_TRUE(seen.insert(value).second) << n << " " << position;
      }
    }
  }
}

// Saved loader states hold a position in this order: a change would silently feed other samples
// after a resume. The numbers come from a separate implementation in Python.
TEST(Permutation, OrderNeverChanges) {
  EXPECT_EQ(values(1, 0, 0), (std::vector<uint64_t>{0}));
  EXPECT_EQ(values(10, 0, 0), (std::vector<uint64_t>{3, 9, 5, 2, 4, 0, 7, 8, 1, 6}));
  EXPECT_EQ(values(10, 42, 1), (std::vector<uint64_t>{7, 2, 3, 9, 1, 0, 4, 8, 6, 5}));
  EXPECT_EQ(values(16, 1, 2),
            (std::vector<uint64_t>{12, 3, 14, 1, 7, 2, 11, 9, 4, 6, 15, 10, 5, 13, 0, 8}));
  EXPECT_EQ(Permutation(1000000007, 1337, 5)(0), 536189548u);
  EXPECT_EQ(Permutation(1000000007, 1337, 5)(1), 415629473u);
  EXPECT_EQ(Permutation(1000000007, 1337, 5)(999999999), 929227621u);
  EXPECT_EQ(Permutation(kMost, UINT64_MAX, 3)(0), 2677129152963236744u);
  EXPECT_EQ(Permutation(kMost, UINT64_MAX, 3)(1), 8583160034836556865u);
  EXPECT_EQ(Permutation(kMost, UINT64_MAX, 3)(kMost - 1), 449642535377809852u);
}

TEST(Permutation, KeysThatDifferGiveOrdersThatDiffer_case23) {
  const std::array<std::pair<uint64_t, uint64_t>, 9> keys{
      {{0, 0}, {0, 1}, {1, 0}, {1, 2}, {2, 1}, {0, 3}, {3, 0}, {UINT64_MAX, 0}, {0, UINT64_MAX}}};
  std::set<std::vector<uint64_t>> orders;
  for (const auto& [seed, epoch] : keys) orders.insert(values(100, seed, epoch));
  EXPECT_EQ(orders.size(), keys.size());
}

TEST(Permutation, SameKeyGivesTheSameOrder) { EXPECT_EQ(values(1000, 5, 6), values(1000, 5, 6)); }

/// The correlation of pairs (x, y), both of which run over 0 .. n-1.
double correlation(const std::vector<uint64_t>& x, const std::vector<uint64_t>& y) {
  const double n = static_cast<double>(x.size()), mean = (n - 1) / 2;
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += (static_cast<double>(x[i]) - mean) * (static_cast<double>(y[i]) - mean);
  }
  return sum / (n * (n * n - 1) / 12);
}

TEST(Permutation, ValuesAreUncorrelatedWithPositionsAndNeighbours) {
  for (uint64_t n : {1000, 4096, 50'000}) {
    std::vector<uint64_t> positions(n);
    for (uint64_t i = 0; i < n; ++i) positions[i] = i;
    // For a random order the correlation has standard deviation 1 / sqrt(n - 1).
    const double limit = 5 / std::sqrt(static_cast<double>(n - 1));
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const std::vector<uint64_t> order = values(n, seed, 0);
      EXPECT_LT(std::abs(correlation(positions, order)), limit) << n << " " << seed;
      std::vector<uint64_t> next = order;
      std::rotate(next.begin(), next.begin() + 1, next.end());
      EXPECT_LT(std::abs(correlation(order, next)), limit) << n << " " << seed;
      EXPECT_LT(std::abs(correlation(order, values(n, seed, 1))), limit) << n << " " << seed;
    }
  }
}

TEST(Permutation, EveryValueIsAsLikelyAtEveryPosition) {
  for (uint64_t n = 5; n <= 20; ++n) {
    for (bool over_epochs : {false, true}) {
      const uint64_t draws = 1000 * n;
      std::vector<double> count(n * n);
      for (uint64_t key = 0; key < draws; ++key) {
        const std::vector<uint64_t> order = over_epochs ? values(n, 12, key) : values(n, key, 0);
        for (uint64_t i = 0; i < n; ++i) ++count[i * n + order[i]];
      }
      const double expected = static_cast<double>(draws) / static_cast<double>(n);
      double first = 0, all = 0;
      for (uint64_t cell = 0; cell < n * n; ++cell) {
        const double term = (count[cell] - expected) * (count[cell] - expected) / expected;
        if (cell < n) first += term;
        all += term;
      }
      const double freedom = static_cast<double>(n - 1);
      EXPECT_LT(first, chi_squared_limit(freedom)) << n;
      // Rows and columns of a permutation matrix both sum to 1, which takes n - 1 of n degrees of
      // freedom from each.
      EXPECT_LT(all * freedom / static_cast<double>(n), chi_squared_limit(freedom * freedom)) << n;
    }
  }
}

TEST(Permutation, BadSizeIsNamed) {
  EXPECT_EQ(message_of<std::invalid_argument>([] { Permutation(0, 1, 1); }),
            "n: expected 1 to 2^63, got 0");
  EXPECT_EQ(message_of<std::invalid_argument>([] { Permutation(kMost + 1, 1, 1); }),
            "n: expected 1 to 2^63, got 9223372036854775809");
}

}  // namespace
}  // namespace aegis
