// The passes of sample, for the vector versions.
#pragma once

#include "kernels/sample.h"
#include "kernels/sample_scans.h"

namespace aegis::kernels {

// `Lanes` lives in an anonymous namespace of its ISA's file, which gives every instantiation here
// internal linkage, so the linker cannot swap one ISA's copy for another's. It has:
//   Element
//   Floats, Mask                 kSampleLanes floats; a condition on each
//   load(p), load(p, n)          the second reads n < kSampleLanes elements; the others: -infinity
//   all(x)                       x in every lane
//   largest(a, b), smallest(a, b)   of each lane; b where either is NaN
//   above, equal, at_least       comparisons, false where there is a NaN
//   unordered(a, b)              where either is NaN
//   either(m, n), both(m, n)     of conditions
//   bits(m)                      as an integer
//   keep(m, a)                   a where m, 0 elsewhere
//   add, subtract, fma(a, b, c)
//   raise(a, r)                  2^(low bits of r) · a, by adding to the exponent
//   fold(a)                      the sum of all, halves first
//   store(p, a), load_floats(p)

constexpr float kLowest = -__builtin_inff();

template <class Lanes>
struct SampleLoops {
  using Element = typename Lanes::Element;
  using Floats = typename Lanes::Floats;
  using Mask = typename Lanes::Mask;

  /// Calls use(values, index) for elements [begin, end), kSampleLanes at a time.
  template <class Use>
  static void each(const Element* row, int64_t begin, int64_t end, Use use) {
    int64_t i = begin;
    for (; i + kSampleLanes <= end; i += kSampleLanes) use(Lanes::load(row + i), i);
    if (i < end) use(Lanes::load(row + i, end - i), i);
  }

  static int64_t up_to(int64_t count, int64_t begin, int64_t size) {
    return count - begin < size ? count : begin + size;
  }

  static SampleRange maxima(const Element* row, int64_t count, float* maxima) {
    Floats all_most = Lanes::all(kLowest), all_least = Lanes::all(-kLowest);
    bool nan = false;
    for (int64_t begin = 0; begin < count; begin += kSampleStripe, maxima += kSampleLanes) {
      const int64_t end = up_to(count, begin, kSampleStripe);
      Floats most = Lanes::all(kLowest);
      Mask none = Lanes::unordered(most, most);
      int64_t i = begin;
      for (; i + 4 * kSampleLanes <= end; i += 4 * kSampleLanes) {
        const Floats a = Lanes::load(row + i), b = Lanes::load(row + i + kSampleLanes);
        const Floats c = Lanes::load(row + i + 2 * kSampleLanes);
        const Floats d = Lanes::load(row + i + 3 * kSampleLanes);
        none = Lanes::either(none, Lanes::either(Lanes::unordered(a, b), Lanes::unordered(c, d)));
        // A NaN in b or d may take the place of a number; `most` is then found again below.
        most = Lanes::largest(Lanes::largest(Lanes::largest(a, b), Lanes::largest(c, d)), most);
      }
      each(row, i, end, [&](Floats values, int64_t) {
        none = Lanes::either(none, Lanes::unordered(values, values));
        most = Lanes::largest(values, most);
      });
      if (Lanes::bits(none)) {
        nan = true;
        most = Lanes::all(kLowest);
        each(row, begin, end, [&](Floats values, int64_t) { most = Lanes::largest(values, most); });
      }
      all_most = Lanes::largest(most, all_most);
      if (end - begin == kSampleStripe) all_least = Lanes::smallest(most, all_least);
      Lanes::store(maxima, most);
    }
    float lanes[kSampleLanes], most = kLowest, least = -kLowest;
    Lanes::store(lanes, all_most);
    for (float lane : lanes) most = lane > most ? lane : most;
    Lanes::store(lanes, all_least);
    for (float lane : lanes) least = lane < least ? lane : least;
    return {most, least, nan};
  }

  static int64_t find(const Element* row, int64_t begin, int64_t count, float value) {
    const Floats wanted = Lanes::all(value);
    int64_t i = begin;
    for (; i + kSampleLanes <= count; i += kSampleLanes) {
      const uint32_t hit = Lanes::bits(Lanes::equal(Lanes::load(row + i), wanted));
      if (hit) return i + __builtin_ctz(hit);
    }
    if (i < count) {
      const uint32_t hit = Lanes::bits(Lanes::equal(Lanes::load(row + i, count - i), wanted)) &
                           ((1u << (count - i)) - 1);
      if (hit) return i + __builtin_ctz(hit);
    }
    return -1;
  }

  static int64_t at_least(const float* values, int64_t count, float low) {
    const Floats limit = Lanes::all(low), one = Lanes::all(1);
    Floats found[4] = {Lanes::all(0), Lanes::all(0), Lanes::all(0), Lanes::all(0)};
    int64_t i = 0;
    for (; i + 4 * kSampleLanes <= count; i += 4 * kSampleLanes) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const Floats some = Lanes::load_floats(values + i + j * kSampleLanes);
        found[j] = Lanes::add(found[j], Lanes::keep(Lanes::at_least(some, limit), one));
      }
    }
    const Floats all = Lanes::add(Lanes::add(found[0], found[1]), Lanes::add(found[2], found[3]));
    float lanes[kSampleLanes];
    Lanes::store(lanes, all);
    int64_t sum = 0;
    for (float lane : lanes) sum += static_cast<int64_t>(lane);
    for (; i < count; ++i) sum += values[i] >= low;
    return sum;
  }

  static void tally(const Element* row, int64_t count, float at, int64_t* above, int64_t* equal) {
    const Floats limit = Lanes::all(at);
    int64_t more = 0, same = 0;
    each(row, 0, count, [&](Floats values, int64_t i) {
      const uint32_t there = count - i < kSampleLanes ? (1u << (count - i)) - 1 : 0xffff;
      more += __builtin_popcount(Lanes::bits(Lanes::above(values, limit)));
      same += __builtin_popcount(Lanes::bits(Lanes::equal(values, limit)) & there);
    });
    *above = more;
    *equal = same;
  }

  static uint32_t hits(Floats values, Floats limit) {
    return Lanes::bits(Lanes::at_least(values, limit));
  }

  static int64_t collect(const Element* row, int64_t count, const float* maxima, float low,
                         int64_t* stripe, uint64_t* keys, int64_t room) {
    const Floats limit = Lanes::all(low);
    int64_t found = 0, at = *stripe;
    const auto take = [&](Floats values, int64_t i) {
      float lanes[kSampleLanes];
      Lanes::store(lanes, values);
      for (uint32_t rest = hits(values, limit); rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        keys[found++] = sample_key(lanes[lane], i + lane);
      }
    };
    for (; at * kSampleStripe < count && room - found >= kSampleStripe; ++at) {
      if (!hits(Lanes::load_floats(maxima + at * kSampleLanes), limit)) continue;
      int64_t i = at * kSampleStripe;
      const int64_t end = up_to(count, i, kSampleStripe);
      for (; i + 4 * kSampleLanes <= end; i += 4 * kSampleLanes) {
        const Floats a = Lanes::load(row + i), b = Lanes::load(row + i + kSampleLanes);
        const Floats c = Lanes::load(row + i + 2 * kSampleLanes);
        const Floats d = Lanes::load(row + i + 3 * kSampleLanes);
        const Floats most = Lanes::largest(Lanes::largest(a, b), Lanes::largest(c, d));
        if (!hits(most, limit)) continue;
        take(a, i);
        take(b, i + kSampleLanes);
        take(c, i + 2 * kSampleLanes);
        take(d, i + 3 * kSampleLanes);
      }
      each(row, i, end, take);
    }
    *stripe = at;
    return found;
  }

  static int64_t between(const Element* row, int64_t count, float low, float high, uint64_t* keys) {
    const Floats lows = Lanes::all(low), highs = Lanes::all(high);
    int64_t found = 0;
    each(row, 0, count, [&](Floats values, int64_t i) {
      uint32_t rest =
          Lanes::bits(Lanes::both(Lanes::above(values, lows), Lanes::at_least(highs, values)));
      if (!rest) return;
      float lanes[kSampleLanes];
      Lanes::store(lanes, values);
      for (; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        keys[found++] = sample_key(lanes[lane], i + lane);
      }
    });
    return found;
  }

  static void sort(const uint64_t* keys, int64_t count, uint64_t* sorted) {
    typedef uint64_t Keys __attribute__((vector_size(64)));
    for (int64_t i = 0; i < count; i += 8) {
      const int64_t n = count - i < 8 ? count - i : 8;
      Keys some = {}, before = {};
      for (int64_t lane = 0; lane < n; ++lane) some[lane] = keys[i + lane];
      for (int64_t j = 0; j < count; ++j) before -= static_cast<Keys>(keys[j] + Keys{} > some);
      for (int64_t lane = 0; lane < n; ++lane) sorted[before[lane]] = some[lane];
    }
  }

  /// sample_weight.h has the operations.
  static Floats weight(Floats values, Floats peak, Floats scale) {
    using C = WeightConstants;
    const Floats magic = Lanes::all(C::kMagic);
    const Floats below = Lanes::subtract(values, peak);
    const Floats r = Lanes::fma(below, scale, magic);
    const Floats f = Lanes::fma(below, scale, Lanes::subtract(magic, r));
    Floats p = Lanes::fma(f, Lanes::all(C::c4), Lanes::all(C::c3));
    p = Lanes::fma(f, p, Lanes::all(C::c2));
    p = Lanes::fma(f, p, Lanes::all(C::c1));
    p = Lanes::fma(f, p, Lanes::all(C::c0));
    p = Lanes::fma(f, p, Lanes::all(1));
    return Lanes::keep(Lanes::at_least(r, Lanes::all(C::kLeast)), Lanes::raise(p, r));
  }

  static void weigh(const float* values, int64_t count, float peak, float scale, float* weights) {
    const Floats peaks = Lanes::all(peak), scales = Lanes::all(scale);
    for (int64_t i = 0; i < count; i += kSampleLanes) {
      const int64_t n = count - i < kSampleLanes ? count - i : kSampleLanes;
      float lanes[kSampleLanes] = {};
      for (int64_t j = 0; j < n; ++j) lanes[j] = values[i + j];
      Lanes::store(lanes, weight(Lanes::load_floats(lanes), peaks, scales));
      for (int64_t j = 0; j < n; ++j) weights[i + j] = lanes[j];
    }
  }

  static void sum(const Element* row, int64_t count, int64_t first, int64_t last,
                  const Weighing& weighing, float* sums) {
    const Floats peak = Lanes::all(weighing.peak), scale = Lanes::all(weighing.scale);
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kSampleBlock;
      Floats total = Lanes::all(0);
      each(row, begin, up_to(count, begin, kSampleBlock),
           [&](Floats values, int64_t) { total = Lanes::add(total, weight(values, peak, scale)); });
      sums[block - first] = Lanes::fold(total);
    }
  }

  static int64_t sum_above(const Element* row, int64_t count, int64_t first, int64_t last,
                           const Weighing& weighing, float* sums, int32_t* equal) {
    const Floats peak = Lanes::all(weighing.peak), scale = Lanes::all(weighing.scale);
    const Floats limit = Lanes::all(weighing.at), floor = Lanes::all(weighing.floor);
    int64_t number = 0;
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kSampleBlock;
      Floats total = Lanes::all(0);
      int32_t ties = 0;
      each(row, begin, up_to(count, begin, kSampleBlock), [&](Floats values, int64_t i) {
        const uint32_t there = count - i < kSampleLanes ? (1u << (count - i)) - 1 : 0xffff;
        const Floats each = weight(values, peak, scale);
        const Mask above = Lanes::above(values, limit);
        const Mask kept = Lanes::both(above, Lanes::at_least(each, floor));
        number += __builtin_popcount(Lanes::bits(above));
        total = Lanes::add(total, Lanes::keep(kept, each));
        ties += __builtin_popcount(Lanes::bits(Lanes::equal(values, limit)) & there);
      });
      sums[block - first] = Lanes::fold(total);
      equal[block - first] = ties;
    }
    return number;
  }

  static void shares(const Element* row, int64_t begin, int64_t end, const Weighing& weighing,
                     bool ties, float share, float* out) {
    const Floats peak = Lanes::all(weighing.peak), scale = Lanes::all(weighing.scale);
    const Floats limit = Lanes::all(weighing.at), floor = Lanes::all(weighing.floor);
    const Floats factor = Lanes::all(share), zero = Lanes::all(0);
    each(row, begin, end, [&](Floats values, int64_t i) {
      const Floats each = weight(values, peak, scale);
      const Mask within = ties ? Lanes::at_least(values, limit) : Lanes::above(values, limit);
      const Mask kept = Lanes::both(within, Lanes::at_least(each, floor));
      const Floats shares = Lanes::keep(kept, Lanes::fma(each, factor, zero));
      if (end - i >= kSampleLanes) return Lanes::store(out + i, shares);
      float lanes[kSampleLanes];
      Lanes::store(lanes, shares);
      for (int64_t lane = 0; lane < end - i; ++lane) out[i + lane] = lanes[lane];
    });
  }

  static constexpr SampleScans<Element> kScans{maxima,  find, at_least, tally, collect,
                                               between, sort, weigh,    sum,   sum_above};
};

}  // namespace aegis::kernels
