// The Row of sample_row.h for CPUs: its passes are those of an instruction set.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/philox.h"
#include "kernels/sample_row.h"
#include "kernels/sample_scans.h"

namespace aegis::kernels {

/// Keys that are sorted by comparing all with all; more are first reduced to those wanted.
constexpr int64_t kSortedAtOnce = 512;

/// What a thread works in, kept from call to call.
struct SampleScratch {
  std::vector<float> maxima;   // kSampleLanes for each stripe
  std::vector<float> sums;     // of a group's blocks
  std::vector<int32_t> equal;  // the same
  std::vector<SampleMass> groups;
  std::vector<uint64_t> keys, sorted;
  float values[kSampleListed], weights[kSampleListed];  // listed, or of the open block

  void fit(int64_t count) {
    const auto stripes = static_cast<size_t>((count + kSampleStripe - 1) / kSampleStripe);
    const auto blocks = static_cast<size_t>(sample_group_blocks(count));
    if (maxima.size() < stripes * kSampleLanes) maxima.resize(stripes * kSampleLanes);
    if (sums.size() < blocks) {
      sums.resize(blocks);
      equal.resize(blocks);
    }
    groups.resize(kSampleGroups);
    keys.resize(2 * kSampleStripe);
    sorted.resize(kSortedAtOnce);
  }
};
static_assert(kSampleListed >= kSampleBlock);

inline SampleScratch& scratch_of_this_thread() {
  thread_local SampleScratch scratch;
  return scratch;
}

template <class Element>
class CpuRow {
 public:
  CpuRow(const SampleScans<Element>& scans, SampleScratch& scratch, const Element* row,
         int64_t count)
      : scans_(scans), scratch_(scratch), row_(row), count_(count) {}

  int64_t count() const { return count_; }

  SamplePeak peak() {
    const SampleRange range = scans_.maxima(row_, count_, scratch_.maxima.data());
    peak_ = range.most;
    least_ = range.least;
    return {peak_, range.nan};
  }
  int64_t peak_index() const {
    const auto first = std::find(scratch_.maxima.begin(), scratch_.maxima.end(), peak_);
    const int64_t stripe = (first - scratch_.maxima.begin()) / kSampleLanes;
    const int64_t index = scans_.find(row_, stripe * kSampleStripe, count_, peak_);
    return std::max(index, int64_t{0});
  }

  void set_weights(float peak, float scale) {
    peak_ = peak;
    scale_ = scale;
  }

  float weight(float value) const {
    float weight;
    scans_.weigh(&value, 1, peak_, scale_, &weight);
    return weight;
  }

  int64_t list(int64_t k) { return weigh_listed(find_largest(k)); }
  int64_t list_between(float low, float high) {
    const int64_t n = scans_.between(row_, count_, low, high, scratch_.keys.data());
    sort(n);
    return weigh_listed(n);
  }
  float listed_value(int64_t i) const { return scratch_.values[i]; }
  float listed_weight(int64_t i) const { return scratch_.weights[i]; }
  int64_t listed_index(int64_t i) const { return sample_key_index(sorted_[i]); }
  SampleTally tally(float at) const {
    SampleTally tally;
    scans_.tally(row_, count_, at, &tally.above, &tally.equal);
    return tally;
  }

  SampleMass mass(float at, float floor) {
    SampleMass whole{0, 0, 0};
    for (int64_t g = 0; g < groups(); ++g) {
      whole.number += sum_group(g, at, floor);
      SampleMass group{0, 0, 0};
      for (int64_t b = 0; b < blocks(); ++b) {
        group.above += scratch_.sums[b];
        group.equal += scratch_.equal[b];
      }
      scratch_.groups[g] = group;
      whole.above += group.above;
      whole.equal += group.equal;
    }
    return whole;
  }
  int64_t groups() const {
    const int64_t each = sample_group_blocks(count_);
    return (sample_blocks(count_) + each - 1) / each;
  }
  SampleMass group_mass(int64_t g) const { return scratch_.groups[g]; }

  void open_group(int64_t g, float at, float floor) { sum_group(g, at, floor); }
  int64_t blocks() const { return last_block_ - first_block_; }
  SampleMass block_mass(int64_t b) const { return {scratch_.sums[b], scratch_.equal[b], 0}; }

  void open_block(int64_t b) {
    first_element_ = (first_block_ + b) * kSampleBlock;
    elements_ = std::min(kSampleBlock, count_ - first_element_);
    for (int64_t i = 0; i < elements_; ++i) {
      scratch_.values[i] = to_float(row_[first_element_ + i]);
    }
    scans_.weigh(scratch_.values, elements_, peak_, scale_, scratch_.weights);
  }
  int64_t elements() const { return elements_; }
  float value(int64_t i) const { return scratch_.values[i]; }
  float element_weight(int64_t i) const { return scratch_.weights[i]; }
  int64_t element_index(int64_t i) const { return first_element_ + i; }

  template <class F>
  auto once(F f) {
    return f();
  }

 protected:
  Weighing weighing(float at, float floor) const { return {peak_, scale_, at, floor}; }

 private:
  /// Sums the group's blocks; how many elements of it are above `at`, if that is finite.
  int64_t sum_group(int64_t g, float at, float floor) {
    const int64_t each = sample_group_blocks(count_);
    first_block_ = g * each;
    last_block_ = std::min(first_block_ + each, sample_blocks(count_));
    if (at == -kSampleInfinity && floor == 0) {  // what equals `at` weighs nothing
      scans_.sum(row_, count_, first_block_, last_block_, weighing(at, floor),
                 scratch_.sums.data());
      std::fill_n(scratch_.equal.begin(), blocks(), 0);
      return 0;
    }
    return scans_.sum_above(row_, count_, first_block_, last_block_, weighing(at, floor),
                            scratch_.sums.data(), scratch_.equal.data());
  }

  int64_t weigh_listed(int64_t n) {
    for (int64_t i = 0; i < n; ++i) scratch_.values[i] = sample_key_value(sorted_[i]);
    scans_.weigh(scratch_.values, n, peak_, scale_, scratch_.weights);
    return n;
  }

  /// Points sorted_ at the first n of scratch_.keys in descending order.
  void sort(int64_t n) {
    scans_.sort(scratch_.keys.data(), n, scratch_.sorted.data());
    sorted_ = scratch_.sorted.data();
  }

  /// Sets sorted_ to the keys of the k largest elements above -infinity, and returns how many.
  int64_t find_largest(int64_t k) {
    const int64_t lanes = (count_ + kSampleStripe - 1) / kSampleStripe * kSampleLanes;
    float low = lower_bound_of(k, lanes);
    uint64_t* keys = scratch_.keys.data();
    const auto room = static_cast<int64_t>(scratch_.keys.size());
    int64_t found = 0;
    for (int64_t stripe = 0;;) {
      found += scans_.collect(row_, count_, scratch_.maxima.data(), low, &stripe, keys + found,
                              room - found);
      if (stripe * kSampleStripe >= count_) break;
      // No room for another stripe: what counts from here on is what exceeds the k-th largest.
      std::nth_element(keys, keys + k - 1, keys + found, std::greater<>());
      low = value_of(order_of(sample_key_value(keys[k - 1])) + 1);
      found = k;
    }
    if (found > kSortedAtOnce) {
      std::partial_sort(keys, keys + k, keys + found, std::greater<>());
      sorted_ = keys;
    } else {
      sort(found);
    }
    return std::min(found, k);
  }

  /// A number that at least k elements reach, and not many more than k of the maxima.
  float lower_bound_of(int64_t k, int64_t lanes) const {
    const float* maxima = scratch_.maxima.data();
    const float lowest = std::max(least_, -kSampleMost);
    if (lanes <= k || scans_.at_least(maxima, lanes, lowest) < k) {
      return -kSampleMost;
    }
    uint32_t low = order_of(lowest), high = order_of(peak_) + 1;  // >= k and < k reach it
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      const int64_t reach = scans_.at_least(maxima, lanes, value_of(middle));
      (reach < k ? high : low) = middle;
      if (reach >= k && reach <= k + k / 8) break;
    }
    return value_of(low);
  }

  const SampleScans<Element>& scans_;
  SampleScratch& scratch_;
  const Element* row_;
  int64_t count_;
  float peak_ = 0, least_ = 0, scale_ = 0;
  const uint64_t* sorted_ = nullptr;
  int64_t first_block_ = 0, last_block_ = 0, first_element_ = 0, elements_ = 0;
};

/// Draws for rows [begin, end) of the job.
template <class Element>
void sample_rows(const SampleScans<Element>& scans, SampleScratch& scratch,
                 const Sample<Element>& job, int64_t begin, int64_t end) {
  scratch.fit(job.count);
  for (int64_t r = begin; r < end; ++r) {
    SampleState& state = job.states[r];
    CpuRow<Element> row(scans, scratch, job.logits + r * job.stride, job.count);
    const Drawn drawn = draw_token(row, job.settings[r * job.settings_stride], job.keep_ties,
                                   uniform(state.seed, state.row, state.position, state.domain));
    ++state.position;
    job.tokens[r] = drawn.token;
    if (job.valid) job.valid[r] = drawn.valid;
    if (job.logprobs) job.logprobs[r] = drawn.logprob;
  }
}

}  // namespace aegis::kernels
