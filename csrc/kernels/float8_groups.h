// The loops shared by the vector versions of float8_quantize.
#pragma once

#include "kernels/float8_quantize.h"

namespace aegis::kernels {

// `Lanes` lives in an anonymous namespace of its ISA's file (as in skinny_rows.h) and has:
//   Element, Vector, Bits    a type of Float8Quantize; kWidth floats; the same as 32-bit integers
//   load(p), load(p, n)      as floats; the second reads n < kWidth elements, the others are zero
//   larger(bits, x)          the larger of `bits` and the bits of |x|, where that is finite
//   largest(bits)            of all lanes, as float
//   cast(x, scale)           x / scale as E4M3, one in each lane of 32 bits
//   store(p, v), store(p, v, n)
template <class Lanes>
inline void float8_quantize_groups(const Float8Quantize<typename Lanes::Element>& job,
                                   int64_t begin, int64_t end) {
  constexpr int64_t kWidth = Lanes::kWidth;
  const int64_t groups = job.groups;
  for (int64_t i = begin * groups; i < end * groups; ++i) {
    const int64_t row = i / groups, first = i % groups * job.group;
    const int64_t left = job.k - first, count = left < job.group ? left : job.group;
    const typename Lanes::Element* x = job.x + row * job.k + first;
    typename Lanes::Bits bits{};
    int64_t at = 0;
    for (; at + kWidth <= count; at += kWidth) bits = Lanes::larger(bits, Lanes::load(x + at));
    if (at < count) bits = Lanes::larger(bits, Lanes::load(x + at, count - at));
    const float scale = float8_scale(Lanes::largest(bits));
    job.scales[i] = scale;
    uint8_t* values = job.values + row * job.k + first;
    for (at = 0; at + kWidth <= count; at += kWidth) {
      Lanes::store(values + at, Lanes::cast(Lanes::load(x + at), scale));
    }
    if (at < count) {
      Lanes::store(values + at, Lanes::cast(Lanes::load(x + at, count - at), scale), count - at);
    }
  }
}

}  // namespace aegis::kernels
