// The shared memory of the block that runs: variables by their place in the source, and garbage in
// them whenever a block begins.
#pragma once

#include <deque>
#include <memory>

#include "simt/memory.h"

namespace aegis::simt {

class SharedMemory {
 public:
  /// Forgets all variables and makes the dynamic memory. Throws Error where it exceeds `limit`.
  void begin_launch(size_t dynamic_bytes, size_t limit);
  /// Poisons the variables that the blocks before have made.
  void begin_block(unsigned char poison);
  void end_launch();

  /// The variable of `site`. Throws Error where it makes the block's memory exceed the limit.
  void* variable(const void* site, const char* name, size_t bytes, size_t element,
                 size_t alignment);
  void* dynamic(const char* name, size_t element);

  /// What was written outside of the variables, or empty. For the end of a block.
  std::string damage() const;

 private:
  struct Variable {
    const void* site;
    Region region;
  };
  Variable& make(const void* site, const char* name, size_t bytes, size_t element,
                 size_t alignment);

  std::deque<Variable> variables_;  // never moved: the memory map points into it
  std::unique_ptr<char[]> memory_;
  size_t used_ = 0;       // of memory_, guards included
  size_t requested_ = 0;  // what a GPU would need
  size_t limit_ = 0;
  unsigned char poison_ = 0;
};

}  // namespace aegis::simt
