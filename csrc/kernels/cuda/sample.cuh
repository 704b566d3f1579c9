// sample on the GPU: a block for each row, which makes the passes that sample_row.h asks for. It
// takes the same decisions on the same sums as the CPU versions.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.cuh"
#include "kernels/philox.h"
#include "kernels/sample.h"
#include "kernels/sample_row.h"
#include "kernels/sample_scans.h"

namespace aegis::kernels::cuda {

constexpr int kSampleThreads = 512;  // with more, registers spill
constexpr int kSampleWarps = kSampleThreads / 32;
constexpr int kSampleKeys = 2048;

struct SampleShared {
  SampleStep step;
  unsigned long long warps[kSampleWarps];
  unsigned found;
  SampleMass groups[kSampleGroups];
  float values[kSampleListed], weights[kSampleListed];  // listed, or of the open block
  int64_t indices[kSampleListed];
  union {
    uint64_t keys[kSampleKeys];  // while a list is made
    struct {                     // while masses are summed
      float sums[kSampleKeys];
      int32_t equal[kSampleKeys];
    } blocks;
  };
};

__device__ inline float sample_weight(float value, float peak, float scale) {
  using C = WeightConstants;
  const float below = value - peak;
  const float r = fmaf(below, scale, C::kMagic);
  const float f = fmaf(below, scale, C::kMagic - r);
  float p = fmaf(f, C::c4, C::c3);
  p = fmaf(f, p, C::c2);
  p = fmaf(f, p, C::c1);
  p = fmaf(f, p, C::c0);
  p = fmaf(f, p, 1.0f);
  return r >= C::kLeast ? __uint_as_float(__float_as_uint(p) + (__float_as_uint(r) << 23)) : 0.0f;
}

/// The Row of sample_row.h. All threads of the block call every function together. A function that
/// writes shared memory begins with a barrier, since others may still read what was there.
template <class Element>
class BlockRow {
 public:
  __device__ BlockRow(SampleShared& shared, const Element* row, int64_t count)
      : shared_(shared), row_(row), count_(count) {}

  __device__ int64_t count() const { return count_; }

  __device__ SamplePeak peak() {
    uint64_t best = 0;
    bool nan = false;
    mine_ = -kSampleInfinity;
    for (int64_t i = threadIdx.x; i < count_; i += kSampleThreads) {
      const float value = to_float(row_[i]);
      nan |= value != value;
      if (value > mine_ || (best == 0 && value == mine_)) {
        mine_ = value;
        best = sample_key(value, i);
      }
    }
    best = most_of_block(best);
    peak_ = best == 0 ? -kSampleInfinity : sample_key_value(best);
    index_ = best == 0 ? 0 : sample_key_index(best);
    return {peak_, __syncthreads_or(nan) != 0};
  }
  __device__ int64_t peak_index() const { return index_; }

  __device__ void set_weights(float peak, float scale) {
    peak_ = peak;
    scale_ = scale;
  }
  __device__ float weight(float value) const { return sample_weight(value, peak_, scale_); }

  __device__ int64_t list(int64_t k) {
    int64_t found = collect(lower_bound_of(k));
    if (found > kSampleKeys) found = collect(largest(*this, k, peak_, peak_, false));
    return sort(found, k);
  }
  __device__ int64_t list_between(float low, float high) {
    const int64_t found =
        collect_where([=](float value, int64_t) { return value > low && value <= high; });
    return sort(found, found);
  }
  __device__ float listed_value(int64_t i) const { return shared_.values[i]; }
  __device__ float listed_weight(int64_t i) const { return shared_.weights[i]; }
  __device__ int64_t listed_index(int64_t i) const { return shared_.indices[i]; }

  __device__ SampleTally tally(float at) {
    return {count_where([at](float value, int64_t) { return value > at; }),
            count_where([at](float value, int64_t) { return value == at; })};
  }

  __device__ SampleMass mass(float at, float floor) {
    const int64_t each = sample_group_blocks(count_), at_once = kSampleKeys / each;
    int number = 0;
    for (int64_t g = 0; g < groups(); g += at_once) {
      const int64_t end = g + at_once < groups() ? g + at_once : groups();
      number += sum_blocks(g * each, end * each, at, floor);
      for (int64_t mine = g + threadIdx.x; mine < end; mine += kSampleThreads) {
        SampleMass group{0, 0, 0};
        for (int64_t b = (mine - g) * each; b < (mine - g + 1) * each; ++b) {
          group.above += shared_.blocks.sums[b];
          group.equal += shared_.blocks.equal[b];
        }
        shared_.groups[mine].above = group.above;
        shared_.groups[mine].equal = group.equal;
      }
    }
    const SampleStep whole = once([this] {
      SampleMass sum{0, 0, 0};
      for (int64_t g = 0; g < groups(); ++g) {
        sum.above += shared_.groups[g].above;
        sum.equal += shared_.groups[g].equal;
      }
      return SampleStep{sum.equal, sum.above, 0, 0};
    });
    return {whole.rest, whole.at, sum_of_block(number)};
  }
  __device__ int64_t groups() const {
    const int64_t each = sample_group_blocks(count_);
    return (sample_blocks(count_) + each - 1) / each;
  }
  __device__ SampleMass group_mass(int64_t g) const {
    return {shared_.groups[g].above, shared_.groups[g].equal, 0};
  }

  __device__ void open_group(int64_t g, float at, float floor) {
    const int64_t each = sample_group_blocks(count_);
    first_block_ = g * each;
    sum_blocks(first_block_, first_block_ + each, at, floor);
  }
  __device__ int64_t blocks() const {
    const int64_t rest = sample_blocks(count_) - first_block_;
    return rest < sample_group_blocks(count_) ? rest : sample_group_blocks(count_);
  }
  __device__ SampleMass block_mass(int64_t b) const {
    return {shared_.blocks.sums[b], shared_.blocks.equal[b], 0};
  }

  __device__ void open_block(int64_t b) {
    first_element_ = (first_block_ + b) * kSampleBlock;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < elements(); i += kSampleThreads) {
      const float value = to_float(row_[first_element_ + i]);
      shared_.values[i] = value;
      shared_.weights[i] = weight(value);
    }
  }
  __device__ int64_t elements() const {
    return count_ - first_element_ < kSampleBlock ? count_ - first_element_ : kSampleBlock;
  }
  __device__ float value(int64_t i) const { return shared_.values[i]; }
  __device__ float element_weight(int64_t i) const { return shared_.weights[i]; }
  __device__ int64_t element_index(int64_t i) const { return first_element_ + i; }

  template <class F>
  __device__ SampleStep once(F f) {
    __syncthreads();
    if (threadIdx.x == 0) {
      const SampleStep step = f();
      // One by one, as the tests' race detector sees no copies of structs.
      shared_.step.at = step.at;
      shared_.step.rest = step.rest;
      shared_.step.mass = step.mass;
      shared_.step.ties = step.ties;
    }
    __syncthreads();
    return shared_.step;
  }

 private:
  /// Lists the k largest of `found` keys, or all where there are fewer; how many.
  __device__ int64_t sort(int64_t found, int64_t k) {
    for (int64_t i = threadIdx.x; i < found; i += kSampleThreads) {
      const uint64_t key = shared_.keys[i];
      int64_t before = 0;
      for (int64_t j = 0; j < found; ++j) before += shared_.keys[j] > key;
      if (before < k) {
        shared_.values[before] = sample_key_value(key);
        shared_.weights[before] = weight(sample_key_value(key));
        shared_.indices[before] = sample_key_index(key);
      }
    }
    __syncthreads();
    return found < k ? found : k;
  }

  __device__ uint64_t most_of_block(unsigned long long key) {
    for (int mask = 16; mask > 0; mask /= 2) {
      const unsigned long long other = __shfl_xor_sync(0xffffffffu, key, mask);
      if (other > key) key = other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared_.warps[threadIdx.x / 32] = key;
    __syncthreads();
    for (int warp = 0; warp < kSampleWarps; ++warp) {
      if (shared_.warps[warp] > key) key = shared_.warps[warp];
    }
    return key;
  }

  __device__ int64_t sum_of_block(int number) {
    number = __reduce_add_sync(0xffffffffu, number);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared_.warps[threadIdx.x / 32] = number;
    __syncthreads();
    int64_t all = 0;
    for (int warp = 0; warp < kSampleWarps; ++warp) all += shared_.warps[warp];
    return all;
  }

  /// How many elements satisfy `condition(value, index)`.
  template <class Condition>
  __device__ int64_t count_where(Condition condition) {
    int number = 0;
    for (int64_t i = threadIdx.x; i < count_; i += kSampleThreads) {
      number += condition(to_float(row_[i]), i);
    }
    return sum_of_block(number);
  }

  /// A number that at least k elements reach, and not many more than k of the threads' largest.
  __device__ float lower_bound_of(int64_t k) {
    const float lowest = -kSampleMost;
    if (__syncthreads_count(mine_ >= lowest) < k) return lowest;
    uint32_t low = order_of(lowest), high = order_of(peak_) + 1;  // >= k and < k reach it
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      const int reach = __syncthreads_count(mine_ >= value_of(middle));
      (reach < k ? high : low) = middle;
      if (reach >= k && reach <= k + k / 8) break;
    }
    return value_of(low);
  }

  /// The keys of elements of at least `low`, or as many as there is room for. Returns how many
  /// there are.
  __device__ int64_t collect(float low) {
    return collect_where([low](float value, int64_t) { return value >= low; });
  }
  /// The keys of what the cut keeps, which has fewer than INT_MAX ties.
  __device__ int64_t collect(SampleCut cut) {
    int64_t low = 0, high = count_;  // the ties that are kept lie before `high`
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      const int64_t ties =
          count_where([&](float value, int64_t i) { return value == cut.at && i < middle; });
      (ties < cut.ties ? low : high) = middle;
    }
    return collect_where(
        [&](float value, int64_t i) { return value > cut.at || (value == cut.at && i < high); });
  }

  template <class Condition>
  __device__ int64_t collect_where(Condition condition) {
    __syncthreads();
    if (threadIdx.x == 0) shared_.found = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count_; i += kSampleThreads) {
      const float value = to_float(row_[i]);
      if (!condition(value, i)) continue;
      const unsigned at = atomicAdd(&shared_.found, 1u);
      if (at < kSampleKeys) shared_.keys[at] = sample_key(value, i);
    }
    __syncthreads();
    return shared_.found;
  }

  /// Sums blocks [first, last) of the row into shared memory, two to a warp at a time; what lies
  /// behind the row has no mass. Returns how many elements above `at` this thread has seen.
  __device__ int sum_blocks(int64_t first, int64_t last, float at, float floor) {
    __syncthreads();
    int number = 0;
    const int lane = threadIdx.x % kSampleLanes;
    for (int64_t pair = threadIdx.x / 32 * 2; first + pair < last; pair += kSampleWarps * 2) {
      const int64_t block = pair + threadIdx.x / kSampleLanes % 2;
      float sum = 0;
      int equal = 0;
      for (int64_t j = lane; j < kSampleBlock; j += kSampleLanes) {
        const int64_t i = (first + block) * kSampleBlock + j;
        if (i >= count_ || first + block >= last) break;
        const float value = to_float(row_[i]);
        const float weight = sample_weight(value, peak_, scale_);
        if (value > at && weight >= floor) sum += weight;
        equal += value == at;
        number += value > at;
      }
      for (int mask = kSampleLanes / 2; mask > 0; mask /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
        equal += __shfl_xor_sync(0xffffffffu, equal, mask);
      }
      if (lane == 0 && first + block < last) {
        shared_.blocks.sums[block] = sum;
        shared_.blocks.equal[block] = equal;
      }
    }
    __syncthreads();
    return number;
  }

  SampleShared& shared_;
  const Element* row_;
  int64_t count_;
  float mine_ = 0;  // the largest element this thread has seen
  float peak_ = 0, scale_ = 0;
  int64_t index_ = 0, first_block_ = 0, first_element_ = 0;
};

template <class Element>
__global__ void __launch_bounds__(kSampleThreads) sample(Sample<Element> job, int64_t rows) {
  AEGIS_SHARED(SampleShared, shared);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    BlockRow<Element> row(shared, job.logits + r * job.stride, job.count);
    const SampleState state = job.states[r];
    const Drawn drawn = draw_token(row, job.settings[r * job.settings_stride], job.keep_ties,
                                   uniform(state.seed, state.row, state.position, state.domain));
    __syncthreads();  // all have read the state
    if (threadIdx.x == 0) {
      job.states[r].position = state.position + 1;
      job.tokens[r] = drawn.token;
      if (job.valid) job.valid[r] = drawn.valid;
      if (job.logprobs) job.logprobs[r] = drawn.logprob;
    }
  }
}

}  // namespace aegis::kernels::cuda
