// Samples of several sources by weight: which source has a position, computed, not looked up in an
// index of the run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/schedule.h"

namespace aegis {

/// A round of W = sum of the weights positions, repeated for ever, in which source i has
/// weights[i]: after any n positions, source i has had n * weights[i] / W samples but for less than
/// one.
///
/// That is Tijdeman's rule for the chairman assignment problem (Discrete Mathematics 32, 1980): of
/// the sources that are far enough behind their share, the one that would fall a whole sample
/// behind soonest. Taking the one that is farthest behind does not keep the promise: of ten sources
/// one may fall 1.26 samples behind.
///
/// Making a round takes O(log sources) a position, about 50 ns; every question after that O(1) or
/// O(log W). Memory: 10 bytes a position. Immutable.
class MixtureRound {
 public:
  static constexpr int64_t kLongest = int64_t{1} << 20;
  static constexpr int64_t kMostSources = int64_t{1} << 16;

  /// Throws std::invalid_argument where there are no or more than kMostSources weights, where one
  /// is below 1, and where their sum is above kLongest.
  explicit MixtureRound(std::vector<int64_t> weights);

  const std::vector<int64_t>& weights() const { return weights_; }
  int64_t length() const { return static_cast<int64_t>(source_.size()); }

  struct Choice {
    size_t source;
    int64_t before;  ///< samples of this source at earlier positions
  };
  /// What comes at `position` >= 0.
  Choice at(int64_t position) const;

  /// Samples of `source` at positions below `position` >= 0.
  int64_t count(size_t source, int64_t position) const;

  /// Where the sample of `source` comes that has `before` >= 0 before it; INT64_MAX where that is
  /// too far.
  int64_t position_of(size_t source, int64_t before) const;

 private:
  std::vector<int64_t> weights_;
  std::vector<uint16_t> source_;  // of each position in the round
  std::vector<uint32_t> before_;  // as in Choice, in the round
  std::vector<uint32_t> where_;   // positions of source 0, of source 1, …
  std::vector<size_t> first_;     // of each source in where_
};

/// One epoch's order over the samples of all sources, which are numbered one source after another.
class MixtureOrder final : public SampleOrder {
 public:
  struct Source {
    int64_t samples;  ///< at least 1
    int64_t pass;     ///< over this source, that the epoch's first sample of it belongs to
    int64_t begin;    ///< samples of that pass that came before
  };

  /// Position p of the epoch is position `phase` + p of `round`, with phase + p >= 0. A source that
  /// is exhausted begins its next pass: in file order, or with `shuffle` in an order of its own for
  /// each pass, keyed by the seed and its number. Throws std::invalid_argument where sources and
  /// weights differ in number, and where a source is empty or its begin outside.
  MixtureOrder(std::shared_ptr<const MixtureRound> round, std::vector<Source> sources,
               int64_t phase, uint64_t seed, bool shuffle);

  int64_t sample(int64_t position) const override;
  int64_t begin() const override { return std::max<int64_t>(0, -phase_); }
  int64_t end() const override { return first_.back(); }

 private:
  const std::shared_ptr<const MixtureRound> round_;
  const std::vector<Source> sources_;
  const int64_t phase_;
  const uint64_t seed_;
  const bool shuffle_;
  std::vector<int64_t> counted_;   // of each source, at positions of the round below max(phase, 0)
  std::vector<int64_t> first_{0};  // number of each source's first sample, and the end
};

}  // namespace aegis
