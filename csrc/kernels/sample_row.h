// What a token is drawn from in one row, and the draw. One text for all: CPU versions and the GPU
// give it a `Row` that makes the passes, and so take the same decisions on the same numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/sample.h"
#include "kernels/sample_weight.h"

// On a GPU all threads of a block run this together, and get the same from each function of Row.
#ifdef __CUDACC__
#define AEGIS_ROW __device__ inline
#else
#define AEGIS_ROW inline
#endif

namespace aegis::kernels {

// A Row has:
//   count()              elements
//   peak()               SamplePeak
//   peak_index()         the first element that has the largest value; 0 where all are NaN
//   set_weights(p, s)    from here on, weights are 2^((x - p) * s)
//   weight(x)            the weight of a value
//   list(k)              finds the k <= kSampleListed largest elements above -infinity; how many
//   list_between(a, b)   the same with those above a and not above b, of which there are at most
//                        kSampleListed
//   listed_value(i), listed_weight(i), listed_index(i)   of the i-th of them
//   tally(at)            SampleTally
//   mass(at, floor)      SampleMass of the elements above `at` whose weight is at least `floor`
//   groups(), group_mass(g)        the parts that the last mass() was summed from
//   open_group(g, at, floor), blocks(), block_mass(b)   a group's parts
//   open_block(b), elements(), value(i), element_weight(i), element_index(i)   a block's parts
//   once(f)              f(), called by one thread alone; gives all what it returns

struct SamplePeak {
  float value;  ///< the largest, NaN ignored
  bool nan;     ///< whether there is one
};
struct SampleTally {
  int64_t above, equal;
};
struct SampleMass {
  double above;    ///< weight of the elements above the cut
  int64_t equal;   ///< number of those equal to it
  int64_t number;  ///< of those above the cut; only of a whole row and a finite cut
};

/// What is kept of a row: the elements above `at`, and the first `ties` of those equal to it.
struct SampleCut {
  float at;
  int64_t ties;
};

struct Drawn {
  int64_t token;
  bool valid;
  float logprob;
};

/// What a walk along masses came to.
struct SampleStep {
  int64_t at;    ///< the part in which the target lies
  double rest;   ///< how far into it
  double mass;   ///< of the part
  int64_t ties;  ///< of the cut that are left when the part begins
};

constexpr float kSampleInfinity = std::numeric_limits<float>::infinity();
constexpr float kSampleMost = std::numeric_limits<float>::max();
constexpr float kSampleNan = std::numeric_limits<float>::quiet_NaN();

/// Numbers as integers that compare alike. 0 and -0 are neighbours.
AEGIS_ROW uint32_t order_of(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
AEGIS_ROW float value_of(uint32_t order) {
  return __builtin_bit_cast(float, order >> 31 ? order & 0x7fffffffu : ~order);
}

/// A product that no compiler fuses with a sum behind it.
AEGIS_ROW double product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;  // CMakeLists.txt turns contraction off
#endif
}

AEGIS_ROW double tie_mass(int64_t equal, int64_t ties, double each) {
  return product(static_cast<double>(equal < ties ? equal : ties), each);
}

/// The first of `parts` whose mass, added to that of the ones before, exceeds `target`, or the last
/// that has any: rounding cannot lead to a part without mass.
template <class MassOf>
AEGIS_ROW SampleStep walk(int64_t parts, double target, int64_t ties, double each, MassOf mass_of) {
  SampleStep last{0, 0, 0, ties};
  for (int64_t i = 0; i < parts; ++i) {
    const SampleMass part = mass_of(i);
    const double mass = part.above + tie_mass(part.equal, ties, each);
    if (mass > 0) {
      last = {i, target, mass, ties};
      if (target < mass) return last;
      target -= mass;
    }
    ties -= part.equal < ties ? part.equal : ties;
  }
  last.rest = last.mass;
  return last;
}

AEGIS_ROW float logprob_of(double weight, double total) {
  return static_cast<float>(log(weight / total));
}

struct SampleList {
  int64_t n;
  double mass;
};

/// What top_p and the floor leave of the first `n` listed elements. Called by one thread alone.
template <class Row>
AEGIS_ROW SampleList limit_listed(const Row& row, int64_t n, float top_p, float floor) {
  double sum = 0;
  if (top_p < 1) {
    for (int64_t i = 0; i < n; ++i) sum += row.listed_weight(i);
    const double wanted = product(top_p, sum);
    sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += row.listed_weight(i);
      if (sum >= wanted) n = i + 1;  // which ends the loop
    }
  }
  while (n > 1 && row.listed_weight(n - 1) < floor) --n;
  sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += row.listed_weight(i);
  return {n, sum};
}

/// Draws among the first `n` listed elements.
template <class Row>
AEGIS_ROW Drawn draw_listed(Row& row, int64_t n, float top_p, float floor, double u) {
  const SampleStep step = row.once([&] {
    const SampleList kept = limit_listed(row, n, top_p, floor);
    SampleStep drawn = walk(kept.n, product(u, kept.mass), 0, 0,
                            [&](int64_t i) { return SampleMass{row.listed_weight(i), 0, 0}; });
    drawn.rest = kept.mass;
    return drawn;
  });
  return {row.listed_index(step.at), true, logprob_of(step.mass, step.rest)};
}

/// Draws among all elements that the cut keeps, in order of index.
template <class Row>
AEGIS_ROW Drawn draw_cut(Row& row, SampleCut cut, float floor, double u) {
  const double tie = row.weight(cut.at);
  const double each = tie < floor ? 0 : tie;
  row.mass(cut.at, floor);
  SampleStep step = row.once([&] {
    double sum = 0;
    int64_t ties = cut.ties;
    for (int64_t g = 0; g < row.groups(); ++g) {
      const SampleMass group = row.group_mass(g);
      sum += group.above + tie_mass(group.equal, ties, each);
      ties -= group.equal < ties ? group.equal : ties;
    }
    SampleStep group = walk(row.groups(), product(u, sum), cut.ties, each,
                            [&](int64_t g) { return row.group_mass(g); });
    group.mass = sum;
    return group;
  });
  const double total = step.mass;
  row.open_group(step.at, cut.at, floor);
  step = row.once([&] {
    return walk(row.blocks(), step.rest, step.ties, each,
                [&](int64_t b) { return row.block_mass(b); });
  });
  // The block's mass is known to float32 only. Its elements share what the block has by their own
  // sum, so that a small one keeps its share.
  const double share = step.rest / step.mass;
  row.open_block(step.at);
  step = row.once([&] {
    const auto mass_of = [&](int64_t i) {
      const float weight = row.element_weight(i), value = row.value(i);
      return SampleMass{value > cut.at && weight >= floor ? weight : 0.0, value == cut.at, 0};
    };
    double sum = 0;
    int64_t ties = step.ties;
    for (int64_t i = 0; i < row.elements(); ++i) {
      const SampleMass element = mass_of(i);
      sum += element.above + tie_mass(element.equal, ties, each);
      ties -= element.equal < ties ? element.equal : ties;
    }
    return walk(row.elements(), product(share, sum), step.ties, each, mass_of);
  });
  return {row.element_index(step.at), true, logprob_of(step.mass, total)};
}

/// How many of the listed elements it takes to reach `wanted`; 0 where all together do not.
template <class Row>
AEGIS_ROW int64_t listed_prefix(Row& row, int64_t n, double wanted) {
  return row
      .once([&] {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
          sum += row.listed_weight(i);
          if (sum >= wanted) return SampleStep{i + 1, 0, 0, 0};
        }
        return SampleStep{0, 0, 0, 0};
      })
      .at;
}

/// A search for a value that lies above a low end and not above a high end. It first goes down from
/// the high end by steps that double, then halves what is left, as numbers and as integers by
/// turns: the latter takes at most 32 steps, the former few where values lie close. It ends when
/// few elements are left between.
class SampleSearch {
 public:
  AEGIS_ROW SampleSearch(float low, int64_t above_low, float high, int64_t above_high, float step)
      : low_(order_of(low)),
        high_(order_of(high)),
        above_low_(above_low),
        above_high_(above_high),
        step_(step) {}

  AEGIS_ROW bool ended() const { return high_ - low_ <= 1 || is_list(); }
  AEGIS_ROW bool is_list() const { return above_low_ - above_high_ <= kSampleListed; }

  AEGIS_ROW float middle() {
    middle_ = low_ + (high_ - low_) / 2;
    float guess = (low() + high()) * 0.5f;
    if (!bounded_) {
      guess = high() - step_;
      step_ += step_;
    }
    by_value_ = !bounded_ || !by_value_;
    const uint32_t order = order_of(guess);
    if (by_value_ && low_ < order && order < high_) middle_ = order;
    return value_of(middle_);
  }
  /// What is looked for is not above the middle; `above` elements are.
  AEGIS_ROW void lower(int64_t above) {
    high_ = middle_;
    above_high_ = above;
  }
  /// It is above the middle.
  AEGIS_ROW void raise(int64_t above) {
    low_ = middle_;
    above_low_ = above;
    bounded_ = true;
  }
  AEGIS_ROW float low() const { return value_of(low_); }
  AEGIS_ROW float high() const { return value_of(high_); }
  AEGIS_ROW int64_t above_high() const { return above_high_; }

 private:
  uint32_t low_, high_, middle_ = 0;
  int64_t above_low_, above_high_;
  float step_;
  bool bounded_ = false, by_value_ = false;
};

/// Keeps the k largest elements; fewer than k are above `high`, and some value is not. About a
/// dozen passes, and at most 200.
template <class Row>
AEGIS_ROW SampleCut largest(Row& row, int64_t k, float peak, float high, bool keep_ties) {
  const int64_t all = row.tally(-kSampleInfinity).above;
  if (all <= k) return {-kSampleInfinity, 0};
  SampleSearch search(-kSampleInfinity, all, high, row.tally(high).above, peak - high);
  while (!search.ended()) {
    const int64_t above = row.tally(search.middle()).above;
    above < k ? search.lower(above) : search.raise(above);
  }
  float at = search.high();
  if (search.is_list()) {
    row.list_between(search.low(), search.high());
    at = row.listed_value(k - search.above_high() - 1);
  }
  const SampleTally tally = row.tally(at);
  return {at, keep_ties ? tally.equal : k - tally.above};
}

/// Keeps the shortest prefix of what `cut` keeps whose mass reaches `wanted`, which that above
/// `high` does not. Passes as above.
template <class Row>
AEGIS_ROW SampleCut prefix(Row& row, SampleCut cut, float peak, float high, double wanted) {
  float at = cut.at;
  if (row.mass(at, 0).above >= wanted) {
    SampleMass mass = row.mass(high, 0);  // above the high end
    SampleSearch search(at, row.tally(at).above, high, mass.number, peak - high);
    while (!search.ended()) {
      const SampleMass above = row.mass(search.middle(), 0);
      if (above.above < wanted) {
        search.lower(above.number);
        mass = above;
      } else {
        search.raise(above.number);
      }
    }
    at = search.high();
    if (search.is_list()) {
      const int64_t n = row.list_between(search.low(), search.high());
      const int64_t needed = listed_prefix(row, n, wanted - mass.above);
      at = row.listed_value((needed > 0 ? needed : n) - 1);
    }
  }
  const SampleMass mass = row.mass(at, 0);
  const int64_t most = at == cut.at ? cut.ties : mass.equal;
  const double needed = (wanted - mass.above) / row.weight(at);
  if (!(needed < static_cast<double>(most))) return {at, most};
  const auto whole = static_cast<int64_t>(needed);
  const int64_t ties = whole + (static_cast<double>(whole) < needed);
  return {at, ties > 1 ? ties : 1};
}

/// The whole mass of what the cut keeps.
template <class Row>
AEGIS_ROW double mass_within(Row& row, SampleCut cut) {
  const SampleMass mass = row.mass(cut.at, 0);
  return mass.above + tie_mass(mass.equal, cut.ties, row.weight(cut.at));
}

/// Finds what a row's token is drawn from, as kernels/sample.h says, and returns what one of these
/// makes of it:
///   ending.sure(valid)                 the token of peak_index(), for sure
///   ending.listed(n, top_p, floor)     the first n listed elements, of which limit_listed() keeps
///                                      some
///   ending.cut(cut, floor)             what the cut keeps whose weight is at least `floor`
template <class Row, class Ending>
AEGIS_ROW auto limit_row(Row& row, const SampleSettings& settings, bool keep_ties, Ending ending) {
  const SamplePeak peak = row.peak();
  if (peak.nan || peak.value == -kSampleInfinity) return ending.sure(false);
  const bool greedy = !(settings.temperature > 0) || !(settings.top_p > 0) ||
                      (settings.top_k >= 1 && settings.top_k < 2 && !keep_ties);
  if (greedy || peak.value == kSampleInfinity) return ending.sure(true);

  const double scale = 1.4426950408889634 / settings.temperature;
  // Never infinity: times 0 that is no number.
  row.set_weights(peak.value, scale < kSampleMost ? static_cast<float>(scale) : kSampleMost);
  const float floor = settings.min_p > 0 ? (settings.min_p < 1 ? settings.min_p : 1) : 0;
  const bool limited = settings.top_k >= 1 && settings.top_k < static_cast<double>(row.count());
  const int64_t k = limited ? static_cast<int64_t>(settings.top_k) : row.count();

  SampleCut cut{-kSampleInfinity, 0};
  if (limited && k > kSampleListed) {
    const int64_t n = row.list(kSampleListed);
    cut = largest(row, k, peak.value, row.listed_value(n - 1), keep_ties);
  }
  if (k <= kSampleListed) {
    int64_t n = row.list(k);
    if (!(limited && keep_ties && n == k)) {
      return ending.listed(n, settings.top_p, floor);
    }
    const float at = row.listed_value(n - 1);
    const SampleTally tally = row.tally(at);
    if (tally.above + tally.equal <= kSampleListed) {
      n = row.list(tally.above + tally.equal);
      return ending.listed(n, settings.top_p, floor);
    }
    cut = {at, tally.equal};
  }
  if (settings.top_p < 1) {
    const double wanted = product(settings.top_p, mass_within(row, cut));
    // Most often few tokens have nearly all the mass.
    const int64_t listed = row.list(kSampleListed), n = listed_prefix(row, listed, wanted);
    if (n > 0) return ending.listed(n, 1, floor);
    cut = prefix(row, cut, peak.value, row.listed_value(listed - 1), wanted);
  }
  return ending.cut(cut, floor);
}

template <class Row>
struct DrawEnding {
  Row& row;
  double u;

  AEGIS_ROW Drawn sure(bool valid) { return {row.peak_index(), valid, valid ? 0 : kSampleNan}; }
  AEGIS_ROW Drawn listed(int64_t n, float top_p, float floor) {
    return draw_listed(row, n, top_p, floor, u);
  }
  AEGIS_ROW Drawn cut(SampleCut cut, float floor) { return draw_cut(row, cut, floor, u); }
};

/// Draws one token by `u` in (0, 1).
template <class Row>
AEGIS_ROW Drawn draw_token(Row& row, const SampleSettings& settings, bool keep_ties, double u) {
  return limit_row(row, settings, keep_ties, DrawEnding<Row>{row, u});
}

}  // namespace aegis::kernels
