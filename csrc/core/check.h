// Checks that end in an exception the caller can read: which argument, what was expected, what
// came.
#pragma once

#include <sstream>
#include <stdexcept>

namespace aegis {

/// Throws `Exception` with the streamed parts of `message` unless `condition` holds.
/// Used before any write, so that a failed call leaves its arguments untouched.
template <class Exception, class... Parts>
void check(bool condition, const Parts&... message) {
  if (condition) [[likely]]
    return;
  std::ostringstream text;
  (text << ... << message);
  throw Exception(text.str());
}

}  // namespace aegis
