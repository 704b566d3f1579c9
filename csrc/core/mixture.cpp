#include "core/mixture.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "core/permutation.h"
#include "core/splitmix.h"

namespace aegis {
namespace {

/// A source that may have the next sample, and when it must have had it, as Tijdeman bounds them.
struct Due {
  int64_t when;
  size_t source;
  bool operator>(const Due& other) const {
    return std::tie(when, source) > std::tie(other.when, other.source);
  }
};
using Soonest = std::priority_queue<Due, std::vector<Due>, std::greater<>>;

}  // namespace

MixtureRound::MixtureRound(std::vector<int64_t> weights) : weights_(std::move(weights)) {
  using Bad = std::invalid_argument;
  const int64_t sources = static_cast<int64_t>(weights_.size());
  check<Bad>(1 <= sources && sources <= kMostSources, "weights: expected 1 to ", kMostSources,
             ", got ", sources);
  int64_t length = 0;
  for (const int64_t weight : weights_) {
    check<Bad>(1 <= weight && weight <= kLongest - length, "weights: expected at least 1, and ",
               kLongest, " together, got ", weight);
    length += weight;
  }
  // In units of 1 / parts of a sample, numbers stay below 2^20 * 2^20 * 2^17.
  const int64_t parts = std::max<int64_t>(1, 2 * sources - 2);
  const auto due = [&](size_t source,
                       int64_t part) {  // the first position count at which w n >= part
    const int64_t unit = parts * weights_[source];
    return (part * length + unit - 1) / unit;
  };
  // A source waits for one sample at a time: those that wait for position count n are a list.
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> waiting(static_cast<size_t>(length) + 1, kNone), next(weights_.size());
  std::vector<int64_t> had(weights_.size());
  const auto wait = [&](size_t source) {
    const size_t when = static_cast<size_t>(due(source, parts * had[source] + 1));
    next[source] = std::exchange(waiting[when], static_cast<uint32_t>(source));
  };
  Soonest ready;
  source_.reserve(static_cast<size_t>(length));
  before_.reserve(static_cast<size_t>(length));
  for (size_t i = 0; i < weights_.size(); ++i) wait(i);
  for (size_t n = 1; n <= static_cast<size_t>(length); ++n) {
    for (uint32_t i = waiting[n]; i != kNone; i = next[i]) {
      ready.push({due(i, parts * (had[i] + 1) - 1), i});
    }
    const size_t source = ready.top().source;
    ready.pop();
    source_.push_back(static_cast<uint16_t>(source));
    before_.push_back(static_cast<uint32_t>(had[source]));
    if (++had[source] < weights_[source]) wait(source);
  }
  first_.resize(weights_.size());
  std::exclusive_scan(weights_.begin(), weights_.end(), first_.begin(), size_t{0});
  where_.resize(source_.size());
  for (size_t at = 0; at < source_.size(); ++at) {
    where_[first_[source_[at]] + before_[at]] = static_cast<uint32_t>(at);
  }
}

MixtureRound::Choice MixtureRound::at(int64_t position) const {
  const int64_t round = position / length();
  const size_t in_round = static_cast<size_t>(position % length());
  const size_t source = source_[in_round];
  return {source, round * weights_[source] + before_[in_round]};
}

int64_t MixtureRound::count(size_t source, int64_t position) const {
  const auto begin = where_.begin() + static_cast<int64_t>(first_[source]);
  const auto end = begin + weights_[source];
  const auto in_round = static_cast<uint32_t>(position % length());
  return position / length() * weights_[source] + (std::lower_bound(begin, end, in_round) - begin);
}

int64_t MixtureRound::position_of(size_t source, int64_t before) const {
  const int64_t round = before / weights_[source];
  const size_t in_round = static_cast<size_t>(before % weights_[source]);
  int64_t position;
  if (__builtin_mul_overflow(round, length(), &position) ||
      __builtin_add_overflow(position, int64_t{where_[first_[source] + in_round]}, &position)) {
    return INT64_MAX;
  }
  return position;
}

MixtureOrder::MixtureOrder(std::shared_ptr<const MixtureRound> round, std::vector<Source> sources,
                           int64_t phase, uint64_t seed, bool shuffle)
    : round_(std::move(round)),
      sources_(std::move(sources)),
      phase_(phase),
      seed_(seed),
      shuffle_(shuffle) {
  using Bad = std::invalid_argument;
  check<Bad>(round_ != nullptr, "round: expected a round, got none");
  check<Bad>(sources_.size() == round_->weights().size(), "sources: expected one for each of ",
             round_->weights().size(), " weights, got ", sources_.size());
  for (size_t i = 0; i < sources_.size(); ++i) {
    const auto& [samples, pass, begin] = sources_[i];
    check<Bad>(samples >= 1, "sources: expected at least 1 sample in source ", i, ", got ",
               samples);
    check<Bad>(pass >= 0 && 0 <= begin && begin <= samples, "sources: expected begin 0 to ",
               samples, " of a pass in source ", i, ", got ", begin, " of pass ", pass);
    counted_.push_back(round_->count(i, std::max<int64_t>(0, phase)));
    first_.push_back(first_.back() + samples);
  }
}

int64_t MixtureOrder::sample(int64_t position) const {
  const auto [source, before] = round_->at(phase_ + position);
  const auto& [samples, pass, begin] = sources_[source];
  const int64_t number = begin + before - counted_[source];
  const int64_t own = number % samples;
  if (!shuffle_) return first_[source] + own;
  // Sources of one length have orders of their own, too.
  const Permutation order(static_cast<uint64_t>(samples),
                          seed_ + (static_cast<uint64_t>(source) + 1) * kGolden,
                          static_cast<uint64_t>(pass + number / samples));
  return first_[source] + static_cast<int64_t>(order(static_cast<uint64_t>(own)));
}

}  // namespace aegis
