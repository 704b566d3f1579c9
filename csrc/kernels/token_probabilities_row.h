// How the probabilities of one row are written. One text for all, as sample_row.h.
#pragma once

#include "kernels/sample_row.h"

namespace aegis::kernels {

// A Row has, beside what sample_row.h asks for, what writes the whole of a row of the result:
//   write_one(i)              1 for element i, 0 for the others
//   write_listed(n, share)    weight times `share` for the first n listed, 0 for the others
//   write_cut(at, floor, end, share)   the same for elements above `at`, and, before index `end`,
//                             for those equal to it, whose weight is at least `floor`

AEGIS_ROW float share_of(double whole) { return static_cast<float>(1 / whole); }

/// The index behind the last tie that the cut keeps of the row's `equal`. Follows mass().
template <class Row>
AEGIS_ROW int64_t end_of_ties(Row& row, SampleCut cut, float floor, int64_t equal) {
  if (cut.ties == 0 || cut.ties >= equal) return row.count();
  // A walk to the last of them, each of mass 1.
  const auto number_of = [](int64_t ties) { return SampleMass{static_cast<double>(ties), 0, 0}; };
  SampleStep step = row.once([&] {
    return walk(row.groups(), static_cast<double>(cut.ties - 1), 0, 0,
                [&](int64_t g) { return number_of(row.group_mass(g).equal); });
  });
  row.open_group(step.at, cut.at, floor);
  step = row.once([&] {
    return walk(row.blocks(), step.rest, 0, 0,
                [&](int64_t b) { return number_of(row.block_mass(b).equal); });
  });
  row.open_block(step.at);
  step = row.once([&] {
    return walk(row.elements(), step.rest, 0, 0,
                [&](int64_t i) { return number_of(row.value(i) == cut.at); });
  });
  return row.element_index(step.at) + 1;
}

template <class Row>
struct WriteEnding {
  Row& row;

  AEGIS_ROW void sure(bool) { row.write_one(row.peak_index()); }
  AEGIS_ROW void listed(int64_t n, float top_p, float floor) {
    const SampleStep kept = row.once([&] {
      const SampleList list = limit_listed(row, n, top_p, floor);
      return SampleStep{list.n, list.mass, 0, 0};
    });
    row.write_listed(kept.at, share_of(kept.rest));
  }
  AEGIS_ROW void cut(SampleCut cut, float floor) {
    const float tie = row.weight(cut.at);
    const SampleMass mass = row.mass(cut.at, floor);
    const double whole = mass.above + tie_mass(mass.equal, cut.ties, tie < floor ? 0 : tie);
    const int64_t end = end_of_ties(row, cut, floor, mass.equal);
    row.write_cut(cut.at, floor, end, share_of(whole));
  }
};

/// Writes what draw_token would draw from.
template <class Row>
AEGIS_ROW void write_probabilities(Row& row, const SampleSettings& settings, bool keep_ties) {
  limit_row(row, settings, keep_ties, WriteEnding<Row>{row});
}

}  // namespace aegis::kernels
