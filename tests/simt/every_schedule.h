// Runs a kernel test once for each schedule, named in the test's id.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "simt/executor.h"

namespace aegis::simt {

class EverySchedule : public testing::TestWithParam<Schedule> {
 protected:
  EverySchedule() { settings().schedule = GetParam(); }
  ~EverySchedule() override { settings() = {}; }
};

inline std::string schedule_name(const testing::TestParamInfo<Schedule>& info) {
  return name_of(info.param);
}

/// The text of the Error that `run` throws, or "no error".
template <class Run>
std::string error_of(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace aegis::simt

#define AEGIS_EVERY_SCHEDULE(Suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(Schedule, Suite, testing::ValuesIn(aegis::simt::schedules()), \
                           aegis::simt::schedule_name)

/// The Error of `statement` holds `text`.
#define EXPECT_SIMT_ERROR(statement, text)                                    \
  do {                                                                        \
    const std::string simt_error = aegis::simt::error_of([&] { statement; }); \
    EXPECT_NE(simt_error.find(text), std::string::npos) << simt_error;        \
  } while (false)
