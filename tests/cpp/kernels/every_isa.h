// Runs a kernel test once for each instruction set this machine has, named in the test's id.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/cpu.h"

namespace aegis {

class EveryIsa : public testing::TestWithParam<Isa> {};

inline std::string isa_name(const testing::TestParamInfo<Isa>& info) {
  return std::string(name(info.param));
}

}  // namespace aegis

#define AEGIS_EVERY_ISA(Suite) \
  INSTANTIATE_TEST_SUITE_P(Isa, Suite, testing::ValuesIn(aegis::available_isas()), aegis::isa_name)
