#include "core/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace aegis {
namespace {

TEST(Cpu, ScalarIsAlwaysThereAndLevelsAscend) {
  const auto& isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::scalar);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
}

TEST(Cpu, EveryAvailableNameParsesToItself) {
  for (Isa isa : available_isas()) EXPECT_EQ(parse_isa(name(isa)), isa);
}

TEST(Cpu, UnknownNameSaysWhatIsExpected) {
  try {
    parse_isa("sse9");
    FAIL() << "parse_isa accepted an unknown name";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("AEGIS_FORCE_ISA: expected one of scalar"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace aegis
