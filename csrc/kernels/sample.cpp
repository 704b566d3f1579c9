#include "kernels/sample.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/philox.h"
#include "kernels/sample_row.h"
#include "kernels/sample_scans.h"

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                     \
  namespace isa {                              \
  template <class Element>                     \
  const SampleScans<Element>& sample_scans();  \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
#endif
#undef AEGIS_DECLARE

namespace {

/// Keys that are sorted by comparing all with all; more are first reduced to those wanted.
constexpr int64_t kSortedAtOnce = 512;

/// What a thread works in, kept from call to call.
struct Scratch {
  std::vector<float> maxima;    // kSampleLanes for each stripe
  std::vector<float> sums;      // of a group's blocks
  std::vector<int32_t> equal;   // the same
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

Scratch& scratch_for(int64_t count) {
  thread_local Scratch scratch;
  scratch.fit(count);
  return scratch;
}

/// The Row of sample_row.h for CPUs.
template <class Element>
class CpuRow {
 public:
  CpuRow(const SampleScans<Element>& scans, Scratch& scratch, const Element* row, int64_t count)
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

  int64_t list(int64_t k) {
    const int64_t n = find_largest(k);
    for (int64_t i = 0; i < n; ++i) scratch_.values[i] = sample_key_value(sorted_[i]);
    scans_.weigh(scratch_.values, n, peak_, scale_, scratch_.weights);
    return n;
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
    SampleMass whole{0, 0};
    for (int64_t g = 0; g < groups(); ++g) {
      open_group(g, at, floor);
      SampleMass group{0, 0};
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

  void open_group(int64_t g, float at, float floor) {
    const int64_t each = sample_group_blocks(count_);
    first_block_ = g * each;
    last_block_ = std::min(first_block_ + each, sample_blocks(count_));
    const Weighing weighing{peak_, scale_, at, floor};
    if (at == -kSampleInfinity && floor == 0) {  // all, and no ties: those would weigh nothing
      scans_.sum(row_, count_, first_block_, last_block_, weighing, scratch_.sums.data());
      std::fill_n(scratch_.equal.begin(), blocks(), 0);
    } else {
      scans_.sum_above(row_, count_, first_block_, last_block_, weighing, scratch_.sums.data(),
                       scratch_.equal.data());
    }
  }
  int64_t blocks() const { return last_block_ - first_block_; }
  SampleMass block_mass(int64_t b) const { return {scratch_.sums[b], scratch_.equal[b]}; }

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

 private:
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
      scans_.sort(keys, found, scratch_.sorted.data());
      sorted_ = scratch_.sorted.data();
    }
    return std::min(found, k);
  }

  /// A number that at least k elements reach, and not many more than k of the maxima.
  float lower_bound_of(int64_t k, int64_t lanes) const {
    const float* maxima = scratch_.maxima.data();
    const float lowest = std::max(least_, -std::numeric_limits<float>::max());
    if (lanes <= k || scans_.at_least(maxima, lanes, lowest) < k) {
      return -std::numeric_limits<float>::max();
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
  Scratch& scratch_;
  const Element* row_;
  int64_t count_;
  float peak_ = 0, least_ = 0, scale_ = 0;
  const uint64_t* sorted_ = nullptr;
  int64_t first_block_ = 0, last_block_ = 0, first_element_ = 0, elements_ = 0;
};

template <class Element>
void sample_rows(const SampleScans<Element>& scans, const Sample<Element>& job, int64_t begin,
                 int64_t end) {
  Scratch& scratch = scratch_for(job.count);
  for (int64_t r = begin; r < end; ++r) {
    SampleState& state = job.states[r];
    CpuRow<Element> row(scans, scratch, job.logits + r * job.stride, job.count);
    const Drawn drawn =
        draw_token(row, job.settings[r * job.settings_stride], job.keep_ties,
                   uniform(state.seed, state.row, state.position, state.domain));
    ++state.position;
    job.tokens[r] = drawn.token;
    if (job.valid) job.valid[r] = drawn.valid;
    if (job.logprobs) job.logprobs[r] = drawn.logprob;
  }
}

template <class Element, const SampleScans<Element>& (*scans)()>
void sample(const Sample<Element>& job, int64_t begin, int64_t end) {
  sample_rows(scans(), job, begin, end);
}

}  // namespace

template <class Element>
SampleKernel<Element> sample_kernel(Isa isa) {
#if AEGIS_X86
  if (isa >= Isa::avx512) return sample<Element, avx512::sample_scans<Element>>;
  if (isa >= Isa::avx2) return sample<Element, avx2::sample_scans<Element>>;
#endif
  (void)isa;
  return sample<Element, scalar::sample_scans<Element>>;
}

#define AEGIS_INSTANTIATE(Element) template SampleKernel<Element> sample_kernel<Element>(Isa);
AEGIS_SAMPLE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels
