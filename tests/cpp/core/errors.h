// Reading the text of an expected exception.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace aegis {

/// The text of the Exception that `f` throws; a test failure where it throws nothing.
template <class Exception, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an exception, got none";
  return {};
}

}  // namespace aegis
