// Memory that ends where nothing is mapped, so that a read behind it stops the test.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

namespace aegis {

/// A page after which nothing is mapped.
class LastPage {
 public:
  LastPage() : page_(sysconf(_SC_PAGESIZE)) {
    start_ = mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start_ == MAP_FAILED || mprotect(end(), page_, PROT_NONE)) throw std::bad_alloc();
  }
  ~LastPage() { munmap(start_, 2 * page_); }
  LastPage(const LastPage&) = delete;
  LastPage& operator=(const LastPage&) = delete;

  /// The last `count` elements of the page, all `value`.
  template <class Element>
  Element* last(int64_t count, Element value = {}) {
    Element* first = reinterpret_cast<Element*>(end()) - count;
    std::fill_n(first, count, value);
    return first;
  }

 private:
  char* end() { return static_cast<char*>(start_) + page_; }

  size_t page_;
  void* start_;
};

}  // namespace aegis
