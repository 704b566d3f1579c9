// One block of memory that is handed out front to back and taken back all at once.
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <utility>

#include "core/mapping.h"

namespace aegis {

/// The arena had less room than was asked for. Nothing was handed out.
class ArenaExhausted : public std::bad_alloc {
 public:
  explicit ArenaExhausted(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

/// A bump allocator over one pre-faulted mapping. Every piece starts at a multiple of 64 bytes; an
/// allocation is an addition. One thread at a time. Stays where it is made: pieces are known by
/// their address.
class Arena {
 public:
  static constexpr size_t kAlign = 64;  // bytes: a cache line, and the widest vector register

  /// Maps and faults in `bytes`, rounded up to pages. Throws what Mapping throws.
  explicit Arena(size_t bytes, const MappingOptions& options = {});
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// `bytes` of uninitialised memory. Throws ArenaExhausted, naming what was asked for and what is
  /// left.
  std::byte* allocate(size_t bytes);

  /// Takes everything back. Earlier pieces stay mapped and will be handed out again.
  void reset() { used_ = 0; }

  std::byte* data() { return memory_.data(); }
  size_t size() const { return memory_.size(); }
  size_t used() const { return used_; }
  const Mapping& mapping() const { return memory_; }

 private:
  Mapping memory_;
  size_t used_ = 0;
};

}  // namespace aegis
