// The loops shared by the vector versions of skinny_linear.
#pragma once

#include "kernels/skinny_linear.h"

namespace aegis::kernels {

// With few rows there is little arithmetic: what counts is that memory never waits. So the rows of
// weights are read as several streams, far from each other, each going straight on from one row to
// the next. Hardware prefetchers follow such streams (neighbouring rows side by side they lose
// again and again: each is short), and pages are looked up in parallel. Besides, every line is
// asked for a page ahead, into the second-level cache: the first level can have too few misses in
// flight.
//
// More than four rows of x are taken in two turns per group of weights, which by then are near:
// twice the loads, but as many streams, and rows of x that are a power of two apart still fit the
// ways of the first-level cache.
//
// `Lanes` lives in an anonymous namespace of its ISA's file, which gives every instantiation here
// internal linkage, so the linker cannot swap one ISA's copy for another's. It has:
//   Element, Vector, Sum   a type of SkinnyLinear, some of its elements, and float32 sums
//   kWidth, kSums          elements in a Vector; how many Sums the registers hold
//   load(p), load(p, n)    the second reads n < kWidth elements and no more; the others are zero
//   add(sum, x, w)         sum + x · w
//   totals(p, out)         four Sums at p to four floats at out
//   widen(e), narrow(f)    one element to float32 and back

constexpr int64_t kLine = 64;     // bytes
constexpr int64_t kAhead = 4096;  // bytes; 2 to 16 KB are as good
constexpr int64_t kTurn = 4;      // rows of x

/// How many rows of weights are read at a time for `rows` rows of x: a power of two up to 8.
constexpr int skinny_streams(int sums, int rows) {
  int streams = 8;
  while (streams > 1 && streams * rows > sums) streams /= 2;
  return streams;
}

/// Adds up rows [row, row + Rows) of x with `Streams` rows of weights and fills the columns first,
/// first + apart, first + 2 · apart ... of `out`.
template <class Lanes, int Rows, int Streams>
inline void skinny_products(const SkinnyLinear<typename Lanes::Element>& job, int64_t row,
                            int64_t first, int64_t apart) {
  using Element = typename Lanes::Element;
  constexpr int64_t kStep = kLine / static_cast<int64_t>(sizeof(Element));
  constexpr int kSums = (Rows * Streams + 3) / 4 * 4;
  typename Lanes::Sum sums[kSums] = {};
  const Element* x[Rows];
  const Element* weights[Streams];
  for (int r = 0; r < Rows; ++r) x[r] = job.x + (row + r) * job.k;
  for (int s = 0; s < Streams; ++s)
    weights[s] = job.weight + (first + s * apart) * job.weight_stride;

  const auto add = [&](int64_t at, auto... count) __attribute__((always_inline)) {
    typename Lanes::Vector values[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) values[r] = Lanes::load(x[r] + at, count...);
#pragma GCC unroll 8
    for (int s = 0; s < Streams; ++s) {
      const typename Lanes::Vector weight = Lanes::load(weights[s] + at, count...);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        sums[s * Rows + r] = Lanes::add(sums[s * Rows + r], values[r], weight);
      }
    }
  };
  int64_t at = 0;
  for (; at + kStep <= job.k; at += kStep) {
#pragma GCC unroll 8
    for (int s = 0; s < Streams; ++s) {
      __builtin_prefetch(reinterpret_cast<const char*>(weights[s] + at) + kAhead, 0, 2);
    }
#pragma GCC unroll 8
    for (int64_t part = 0; part < kStep; part += Lanes::kWidth) add(at + part);
  }
  for (; at + Lanes::kWidth <= job.k; at += Lanes::kWidth) add(at);
  if (at < job.k) add(at, job.k - at);

  float totals[kSums];
#pragma GCC unroll 8
  for (int i = 0; i < kSums; i += 4) Lanes::totals(sums + i, totals + i);
  for (int s = 0; s < Streams; ++s) {
    const int64_t column = first + s * apart;
    const float bias = job.bias ? Lanes::widen(job.bias[column]) : 0;
    for (int r = 0; r < Rows; ++r) {
      job.out[(row + r) * job.n + column] = Lanes::narrow(totals[s * Rows + r] + bias);
    }
  }
}

/// All rows, `Rows` or, where that is kTurn, in turns of two to four.
template <class Lanes, int Rows, int Streams>
inline void skinny_turns(const SkinnyLinear<typename Lanes::Element>& job, int64_t first,
                         int64_t apart) {
  if constexpr (Rows < kTurn) {
    skinny_products<Lanes, Rows, Streams>(job, 0, first, apart);
  } else {
    const int64_t half = job.rows <= kTurn ? job.rows : (job.rows + 1) / 2;
    for (int64_t row = 0, rows = half; rows > 0; row += rows, rows = job.rows - row) {
      if (rows == 4) skinny_products<Lanes, 4, Streams>(job, row, first, apart);
      if (rows == 3) skinny_products<Lanes, 3, Streams>(job, row, first, apart);
      if (rows == 2) skinny_products<Lanes, 2, Streams>(job, row, first, apart);
    }
  }
}

template <class Lanes, int Rows>
inline void skinny_columns(const SkinnyLinear<typename Lanes::Element>& job, int64_t begin,
                           int64_t end) {
  constexpr int kStreams = skinny_streams(Lanes::kSums, Rows);
  const int64_t apart = (end - begin) / kStreams;
  for (int64_t i = 0; i < apart; ++i) {
    skinny_turns<Lanes, Rows, kStreams>(job, begin + i, apart);
  }
  for (int64_t column = begin + apart * kStreams; column < end; ++column) {
    skinny_turns<Lanes, Rows, 1>(job, column, 0);
  }
}

template <class Lanes>
inline void skinny_rows(const SkinnyLinear<typename Lanes::Element>& job, int64_t begin,
                        int64_t end) {
  if (job.rows == 1) skinny_columns<Lanes, 1>(job, begin, end);
  if (job.rows == 2) skinny_columns<Lanes, 2>(job, begin, end);
  if (job.rows == 3) skinny_columns<Lanes, 3>(job, begin, end);
  if (job.rows >= 4) skinny_columns<Lanes, kTurn>(job, begin, end);
}

// static: each instruction set compiles a copy of its own.
static inline float widen_bfloat16(BFloat16 value) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16);
}

static inline BFloat16 narrow_bfloat16(float value) {
  if (value != value) return {0x7fff};
  const auto word = __builtin_bit_cast(uint32_t, value);
  return {static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16)};
}

}  // namespace aegis::kernels
