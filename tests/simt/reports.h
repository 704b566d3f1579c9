// What was found while a grid ran: collected, so that one launch shows more than its first fault.
#pragma once

#include <cstddef>
#include <set>
#include <source_location>
#include <string>
#include <vector>

namespace aegis::simt {

class Reports {
 public:
  void add(std::string text);
  /// Whether `code`, a place in the program, comes for the first time in this launch.
  bool fresh(const void* code) { return places_.insert(code).second; }
  bool empty() const { return texts_.empty(); }
  /// All of them, a line each, and forgets them.
  std::string take();

 private:
  static constexpr size_t kKept = 8;
  std::vector<std::string> texts_;
  std::set<const void*> places_;
  size_t count_ = 0;
};

Reports& reports();

/// "(3,0,0)"
std::string coordinates(unsigned x, unsigned y, unsigned z);

/// "argmax.cuh:17"
std::string place(const std::source_location& where);

}  // namespace aegis::simt
