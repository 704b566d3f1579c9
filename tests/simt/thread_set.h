// Which threads of a block may go on.
#pragma once

#include <array>
#include <cstdint>

namespace aegis::simt {

constexpr uint32_t kMaxThreads = 1024;  // a block may have

/// A set of thread numbers with cheap first, last and next.
class ThreadSet {
 public:
  void assign_all(uint32_t count);
  void insert(uint32_t thread);
  void erase(uint32_t thread);
  bool empty() const { return size_ == 0; }
  // Of a set that is not empty:
  uint32_t first() const { return next(0); }
  uint32_t last() const;
  /// The first at or after `thread`, going round.
  uint32_t next(uint32_t thread) const;

 private:
  static constexpr uint32_t kWords = kMaxThreads / 64;
  std::array<uint64_t, kWords> words_{};
  uint32_t size_ = 0;
};

}  // namespace aegis::simt
