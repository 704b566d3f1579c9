// What AVX2 has instead of masks.
#pragma once

#include <cstdint>

namespace aegis::kernels {
namespace {  // each file compiles a copy of its own

/// The end of a row, copied to or from where a whole vector may be.
template <class Element, int kCount>
struct Tail {
  Element elements[kCount] = {};
  Tail() = default;
  Tail(const Element* from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) elements[i] = from[i];
  }
  void give(Element* to, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) to[i] = elements[i];
  }
};

}  // namespace
}  // namespace aegis::kernels
