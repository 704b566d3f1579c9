// The oracle: the passes over a row, in plain loops.
#include <limits>

#include "kernels/sample.h"
#include "kernels/sample_scalar.h"
#include "kernels/sample_scans.h"

namespace aegis::kernels::scalar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Element>
SampleRange maxima(const Element* row, int64_t count, float* maxima) {
  SampleRange range{-kInfinity, kInfinity, false};
  for (int64_t stripe = 0; stripe < count; stripe += kSampleStripe, maxima += kSampleLanes) {
    for (int64_t lane = 0; lane < kSampleLanes; ++lane) maxima[lane] = -kInfinity;
    const bool whole = count - stripe >= kSampleStripe;
    const int64_t end = whole ? stripe + kSampleStripe : count;
    for (int64_t i = stripe; i < end; ++i) {
      const float value = to_float(row[i]);
      float& most = maxima[(i - stripe) % kSampleLanes];
      if (value > most) most = value;
      range.nan |= value != value;
    }
    for (int64_t lane = 0; lane < kSampleLanes; ++lane) {
      if (maxima[lane] > range.most) range.most = maxima[lane];
      if (whole && maxima[lane] < range.least) range.least = maxima[lane];
    }
  }
  return range;
}

template <class Element>
int64_t find(const Element* row, int64_t begin, int64_t count, float value) {
  for (int64_t i = begin; i < count; ++i) {
    if (to_float(row[i]) == value) return i;
  }
  return -1;
}

int64_t at_least(const float* values, int64_t count, float low) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) found += values[i] >= low;
  return found;
}

template <class Element>
void tally(const Element* row, int64_t count, float at, int64_t* above, int64_t* equal) {
  *above = *equal = 0;
  for (int64_t i = 0; i < count; ++i) {
    *above += to_float(row[i]) > at;
    *equal += to_float(row[i]) == at;
  }
}

template <class Element>
int64_t collect(const Element* row, int64_t count, const float* maxima, float low, int64_t* stripe,
                uint64_t* keys, int64_t room) {
  int64_t found = 0;
  for (; *stripe * kSampleStripe < count && room - found >= kSampleStripe; ++*stripe) {
    if (at_least(maxima + *stripe * kSampleLanes, kSampleLanes, low) == 0) continue;
    const int64_t begin = *stripe * kSampleStripe;
    const int64_t end = count - begin < kSampleStripe ? count : begin + kSampleStripe;
    for (int64_t i = begin; i < end; ++i) {
      if (to_float(row[i]) >= low) keys[found++] = sample_key(to_float(row[i]), i);
    }
  }
  return found;
}

template <class Element>
int64_t between(const Element* row, int64_t count, float low, float high, uint64_t* keys) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float value = to_float(row[i]);
    if (value > low && value <= high) keys[found++] = sample_key(value, i);
  }
  return found;
}

void sort(const uint64_t* keys, int64_t count, uint64_t* sorted) {
  for (int64_t i = 0; i < count; ++i) {
    int64_t before = 0;
    for (int64_t j = 0; j < count; ++j) before += keys[j] > keys[i];
    sorted[before] = keys[i];
  }
}

void weigh(const float* values, int64_t count, float peak, float scale, float* weights) {
  for (int64_t i = 0; i < count; ++i) weights[i] = weight_of(values[i], peak, scale);
}

template <class Element>
int64_t sum_above(const Element* row, int64_t count, int64_t first, int64_t last,
                  const Weighing& weighing, float* sums, int32_t* equal) {
  int64_t above = 0;
  for (int64_t block = first; block < last; ++block) {
    float lanes[kSampleLanes] = {};
    int32_t ties = 0;
    const int64_t begin = block * kSampleBlock;
    const int64_t end = count - begin < kSampleBlock ? count : begin + kSampleBlock;
    for (int64_t i = begin; i < end; ++i) {
      const float value = to_float(row[i]);
      const float weight = weight_of(value, weighing.peak, weighing.scale);
      if (value > weighing.at && weight >= weighing.floor) lanes[i % kSampleLanes] += weight;
      ties += value == weighing.at;
      above += value > weighing.at;
    }
    for (int64_t half = kSampleLanes / 2; half > 0; half /= 2) {
      for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    sums[block - first] = lanes[0];
    equal[block - first] = ties;
  }
  return above;
}

template <class Element>
void sum(const Element* row, int64_t count, int64_t first, int64_t last, const Weighing& weighing,
         float* sums) {
  for (int64_t block = first; block < last; ++block) {
    int32_t equal;
    sum_above(row, count, block, block + 1, {weighing.peak, weighing.scale, -kInfinity, 0},
              sums + (block - first), &equal);
  }
}

}  // namespace

template <class Element>
const SampleScans<Element>& sample_scans() {
  static constexpr SampleScans<Element> kScans{
      maxima<Element>,  find<Element>, at_least, tally<Element>, collect<Element>,
      between<Element>, sort,          weigh,    sum<Element>,   sum_above<Element>};
  return kScans;
}

#define AEGIS_INSTANTIATE(Element) template const SampleScans<Element>& sample_scans();
AEGIS_SAMPLE_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::scalar
