// How a token is drawn from one row. One text for all: CPU versions and the GPU give it a `Row`
// that makes the passes, and so take the same decisions on the same numbers.
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
  double above;   ///< weight of the elements above the cut
  int64_t equal;  ///< number of those equal to it
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
constexpr float kSampleNan = std::numeric_limits<float>::quiet_NaN();

/// Numbers as integers that compare alike. 0 and -0 are neighbours.
AEGIS_ROW uint32_t order_of(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
AEGIS_ROW float value_of(uint32_t order) {
  return __builtin_bit_cast(float, order >> 31 ? order & 0x7fffffffu : ~order);
}

AEGIS_ROW double tie_mass(int64_t equal, int64_t ties, double each) {
  return static_cast<double>(equal < ties ? equal : ties) * each;
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

/// Draws among the first `n` listed elements.
template <class Row>
AEGIS_ROW Drawn draw_listed(Row& row, int64_t n, float top_p, float floor, double u) {
  const SampleStep step = row.once([&] {
    double sum = 0;
    if (top_p < 1) {
      for (int64_t i = 0; i < n; ++i) sum += row.listed_weight(i);
      const double wanted = top_p * sum;
      sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        sum += row.listed_weight(i);
        if (sum >= wanted) n = i + 1;  // which ends the loop
      }
    }
    while (n > 1 && row.listed_weight(n - 1) < floor) --n;
    sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += row.listed_weight(i);
    SampleStep drawn = walk(n, u * sum, 0, 0, [&](int64_t i) {
      return SampleMass{row.listed_weight(i), 0};
    });
    drawn.rest = sum;
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
    SampleStep group = walk(row.groups(), u * sum, cut.ties, each,
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
      return SampleMass{value > cut.at && weight >= floor ? weight : 0.0, value == cut.at};
    };
    double sum = 0;
    int64_t ties = step.ties;
    for (int64_t i = 0; i < row.elements(); ++i) {
      const SampleMass element = mass_of(i);
      sum += element.above + tie_mass(element.equal, ties, each);
      ties -= element.equal < ties ? element.equal : ties;
    }
    return walk(row.elements(), share * sum, step.ties, each, mass_of);
  });
  return {row.element_index(step.at), true, logprob_of(step.mass, total)};
}

/// Keeps the k largest elements, found by halving the range of values: at most 33 passes.
template <class Row>
AEGIS_ROW SampleCut largest(Row& row, int64_t k, float peak, bool keep_ties) {
  if (row.tally(-kSampleInfinity).above <= k) return {-kSampleInfinity, 0};
  uint32_t low = order_of(-kSampleInfinity), high = order_of(peak);  // >= k and < k are above
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (row.tally(value_of(middle)).above < k ? high : low) = middle;
  }
  const float at = value_of(high);
  const SampleTally tally = row.tally(at);
  return {at, keep_ties ? tally.equal : k - tally.above};
}

/// Keeps the shortest prefix of what `cut` keeps whose mass reaches `wanted`; at most 33 passes.
template <class Row>
AEGIS_ROW SampleCut prefix(Row& row, SampleCut cut, float peak, double wanted) {
  float at = cut.at;
  if (row.mass(at, 0).above >= wanted) {
    uint32_t low = order_of(at), high = order_of(peak);  // >= wanted and < wanted are above
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      (row.mass(value_of(middle), 0).above < wanted ? high : low) = middle;
    }
    at = value_of(high);
  }
  const SampleMass mass = row.mass(at, 0);
  const int64_t most = at == cut.at ? cut.ties : mass.equal;
  const double needed = (wanted - mass.above) / row.weight(at);
  if (!(needed < static_cast<double>(most))) return {at, most};
  const auto whole = static_cast<int64_t>(needed);
  const int64_t ties = whole + (static_cast<double>(whole) < needed);
  return {at, ties > 1 ? ties : 1};
}

/// How many of the listed elements it takes to reach `wanted`; 0 where all do not.
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

/// The whole mass of what the cut keeps.
template <class Row>
AEGIS_ROW double mass_within(Row& row, SampleCut cut) {
  const SampleMass mass = row.mass(cut.at, 0);
  return mass.above + tie_mass(mass.equal, cut.ties, row.weight(cut.at));
}

/// Draws one token by `u` in (0, 1), as kernels/sample.h says.
template <class Row>
AEGIS_ROW Drawn draw_token(Row& row, const SampleSettings& settings, bool keep_ties, double u) {
  const SamplePeak peak = row.peak();
  if (peak.nan || peak.value == -kSampleInfinity) {
    return {row.peak_index(), false, kSampleNan};
  }
  const bool greedy = !(settings.temperature > 0) || !(settings.top_p > 0) ||
                      (settings.top_k >= 1 && settings.top_k < 2 && !keep_ties);
  if (greedy || peak.value == kSampleInfinity) return {row.peak_index(), true, 0};

  const double scale = 1.4426950408889634 / settings.temperature;
  constexpr float kMost = std::numeric_limits<float>::max();  // infinity times 0 is no number
  row.set_weights(peak.value, scale < kMost ? static_cast<float>(scale) : kMost);
  const float floor = settings.min_p > 0 ? (settings.min_p < 1 ? settings.min_p : 1) : 0;
  const bool limited =
      settings.top_k >= 1 && settings.top_k < static_cast<double>(row.count());
  const int64_t k = limited ? static_cast<int64_t>(settings.top_k) : row.count();

  SampleCut cut{-kSampleInfinity, 0};
  if (limited && k > kSampleListed) cut = largest(row, k, peak.value, keep_ties);
  if (k <= kSampleListed) {
    int64_t n = row.list(k);
    if (!(limited && keep_ties && n == k)) {
      return draw_listed(row, n, settings.top_p, floor, u);
    }
    const float at = row.listed_value(n - 1);
    const SampleTally tally = row.tally(at);
    if (tally.above + tally.equal <= kSampleListed) {
      n = row.list(tally.above + tally.equal);
      return draw_listed(row, n, settings.top_p, floor, u);
    }
    cut = {at, tally.equal};
  }
  if (settings.top_p < 1) {
    const double wanted = settings.top_p * mass_within(row, cut);
    // Most often few tokens have nearly all the mass.
    const int64_t n = listed_prefix(row, row.list(kSampleListed), wanted);
    if (n > 0) return draw_listed(row, n, 1, floor, u);
    cut = prefix(row, cut, peak.value, wanted);
  }
  return draw_cut(row, cut, floor, u);
}

}  // namespace aegis::kernels
