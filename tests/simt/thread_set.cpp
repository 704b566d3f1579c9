#include "simt/thread_set.h"

#include <algorithm>
#include <bit>

namespace aegis::simt {

void ThreadSet::assign_all(uint32_t count) {
  size_ = count;
  for (uint32_t i = 0; i < kWords; ++i) {
    const uint32_t here = std::min(64u, count - std::min(count, 64 * i));
    words_[i] = here == 64 ? ~uint64_t{0} : (uint64_t{1} << here) - 1;
  }
}

void ThreadSet::insert(uint32_t thread) {
  words_[thread / 64] |= uint64_t{1} << thread % 64;
  ++size_;
}

void ThreadSet::erase(uint32_t thread) {
  words_[thread / 64] &= ~(uint64_t{1} << thread % 64);
  --size_;
}

uint32_t ThreadSet::last() const {
  uint32_t i = kWords - 1;
  while (words_[i] == 0) --i;
  return i * 64 + 63 - std::countl_zero(words_[i]);
}

uint32_t ThreadSet::next(uint32_t thread) const {
  uint32_t i = thread / 64;
  uint64_t word = words_[i] & (~uint64_t{0} << thread % 64);
  while (word == 0) word = words_[i = (i + 1) % kWords];
  return i * 64 + std::countr_zero(word);
}

}  // namespace aegis::simt
