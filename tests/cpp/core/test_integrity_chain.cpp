#include "core/integrity_chain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "core/fnv.h"

namespace aegis {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Fnv, KnownValues) {  // as the authors publish them
  EXPECT_EQ(fnv1a(Fnv<uint32_t>::kBasis, bytes_of("")), 0x811C9DC5u);
  EXPECT_EQ(fnv1a(Fnv<uint32_t>::kBasis, bytes_of("a")), 0xE40C292Cu);
  EXPECT_EQ(fnv1a(Fnv<uint32_t>::kBasis, bytes_of("foobar")), 0xBF9CF968u);
  EXPECT_EQ(fnv1a(Fnv<uint64_t>::kBasis, bytes_of("")), 0xCBF29CE484222325u);
  EXPECT_EQ(fnv1a(Fnv<uint64_t>::kBasis, bytes_of("a")), 0xAF63DC4C8601EC8Cu);
  EXPECT_EQ(fnv1a(Fnv<uint64_t>::kBasis, bytes_of("foobar")), 0x85944171F73967E8u);
}

struct Kind {
  int bits;
  bool lanes;
};

class IntegrityChainTest : public testing::TestWithParam<Kind> {
 protected:
  IntegrityChain chain() const { return {GetParam().bits, GetParam().lanes}; }
};

TEST_P(IntegrityChainTest, DependsOnEverythingInARecord) {
  const auto value = [&](int64_t step, double loss,
                         const std::vector<IntegrityChain::Part>& parts) {
    IntegrityChain c = chain();
    c.add(step, loss, parts);
    return c.state().value;
  };
  const uint64_t base = value(1, 2.5, {bytes_of("ab"), bytes_of("c")});
  EXPECT_EQ(value(1, 2.5, {bytes_of("ab"), bytes_of("c")}), base);
  EXPECT_NE(value(2, 2.5, {bytes_of("ab"), bytes_of("c")}), base);
  EXPECT_NE(value(1, std::nextafter(2.5, 3.0), {bytes_of("ab"), bytes_of("c")}), base);
  EXPECT_NE(value(1, 2.5, {bytes_of("a"), bytes_of("bc")}), base);
  EXPECT_NE(value(1, 2.5, {bytes_of("c"), bytes_of("ab")}), base);
  EXPECT_NE(value(1, 2.5, {bytes_of("abc")}), base);
  EXPECT_NE(value(1, 2.5, {bytes_of("ab"), bytes_of("c"), bytes_of("")}), base);
  EXPECT_NE(value(1, 0.0, {}), value(1, -0.0, {}));
}

TEST_P(IntegrityChainTest, DependsOnTheOrderOfRecords) {
  IntegrityChain first = chain(), second = chain();
  first.add(1, 1.0, {});
  first.add(2, 2.0, {});
  second.add(2, 2.0, {});
  second.add(1, 1.0, {});
  EXPECT_NE(first.state().value, second.state().value);
  EXPECT_EQ(first.state().records, 2u);
}

TEST_P(IntegrityChainTest, GoesOnFromAState) {
  IntegrityChain whole = chain(), rest = chain();
  for (int64_t step = 0; step < 10; ++step) {
    if (step == 4) rest.restore(whole.state());
    whole.add(step, 0.5, {bytes_of("batch")});
    if (step >= 4) rest.add(step, 0.5, {bytes_of("batch")});
  }
  EXPECT_EQ(rest.state().value, whole.state().value);
  EXPECT_EQ(rest.state().records, 10u);
}

TEST_P(IntegrityChainTest, TakesLossesThatAreNoNumbers) {
  IntegrityChain a = chain(), b = chain();
  a.add(0, std::numeric_limits<double>::quiet_NaN(), {});
  b.add(0, std::numeric_limits<double>::infinity(), {});
  EXPECT_NE(a.state().value, b.state().value);
}

INSTANTIATE_TEST_SUITE_P(Kinds, IntegrityChainTest,
                         testing::Values(Kind{32, false}, Kind{32, true}, Kind{64, false},
                                         Kind{64, true}),
                         [](const auto& info) {
                           return std::to_string(info.param.bits) +
                                  (info.param.lanes ? "lanes" : "serial");
                         });

TEST(IntegrityChain, RefusesOtherKinds) {
  EXPECT_THROW(IntegrityChain(16, true), std::invalid_argument);
  IntegrityChain chain(32, true);
  EXPECT_THROW(chain.restore({64, true, 0, 0}), std::invalid_argument);
  EXPECT_THROW(chain.restore({32, false, 0, 0}), std::invalid_argument);
  EXPECT_THROW(chain.restore({32, true, uint64_t{1} << 32, 0}), std::invalid_argument);
  EXPECT_EQ(chain.state().value, Fnv<uint32_t>::kBasis);
}

}  // namespace
}  // namespace aegis
