// The passes over a row that each instruction set has a version of; the rest of sample is common.
#pragma once

#include <cstdint>

#include "kernels/element.h"
#include "kernels/sample_weight.h"

namespace aegis::kernels {

struct SampleRange {
  float most;   ///< the largest element
  float least;  ///< the smallest of the maxima of whole stripes; infinity where there are none
  bool nan;     ///< whether there is a NaN
};

/// The key of an element. static: each instruction set compiles a copy of its own.
AEGIS_HOST_DEVICE static inline uint64_t sample_key(float value, int64_t index) {
  const auto bits = __builtin_bit_cast(uint32_t, value + 0.0f);  // -0 becomes 0
  const uint32_t order = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | static_cast<uint32_t>(~index);
}
AEGIS_HOST_DEVICE static inline int64_t sample_key_index(uint64_t key) {
  return static_cast<uint32_t>(~key);
}
AEGIS_HOST_DEVICE static inline float sample_key_value(uint64_t key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return __builtin_bit_cast(float, order >> 31 ? order & 0x7fffffffu : ~order);
}

/// Functions of one instruction set. The key of an element is larger for larger values, and for
/// equal ones (0 and -0 are equal) for the lower index: the value's bits, made to compare as
/// numbers do, above those of ~index. Rows have no alignment beyond their elements', and nothing
/// behind them is read. NaN compares as unequal to everything.
template <class Element>
struct SampleScans {
  /// The largest of each set of 64 (kSampleStripe), 16 to a stripe, -infinity where there is none,
  /// NaN ignored.
  SampleRange (*maxima)(const Element* row, int64_t count, float* maxima);
  /// The first index in [begin, count) whose element equals `value`, or -1.
  int64_t (*find)(const Element* row, int64_t begin, int64_t count, float value);
  /// How many of `values`, of which there are fewer than 2²⁷, are at least `low`.
  int64_t (*at_least)(const float* values, int64_t count, float low);
  /// How many elements are above `at`, and how many equal it.
  void (*tally)(const Element* row, int64_t count, float at, int64_t* above, int64_t* equal);
  /// Appends the keys of elements of at least `low`, in order of index, from stripe `*stripe` on to
  /// the last one, or until fewer than kSampleStripe of `room` are left. Returns their number.
  int64_t (*collect)(const Element* row, int64_t count, const float* maxima, float low,
                     int64_t* stripe, uint64_t* keys, int64_t room);
  /// The keys of elements above `low` and not above `high`, in order of index, of which there are
  /// at most kSampleListed. Returns their number.
  int64_t (*between)(const Element* row, int64_t count, float low, float high, uint64_t* keys);
  /// Sorts distinct keys, the largest first; costs count².
  void (*sort)(const uint64_t* keys, int64_t count, uint64_t* sorted);
  /// The weight of each of `values`.
  void (*weigh)(const float* values, int64_t count, float peak, float scale, float* weights);
  /// Sums of blocks [first, last) of the row; the second counts only what `weighing` says, and how
  /// many elements equal weighing.at in each; it returns how many are above weighing.at.
  void (*sum)(const Element* row, int64_t count, int64_t first, int64_t last,
              const Weighing& weighing, float* sums);
  int64_t (*sum_above)(const Element* row, int64_t count, int64_t first, int64_t last,
                       const Weighing& weighing, float* sums, int32_t* equal);
};

/// Writes the probabilities of elements [begin, end): weight times `share` for those above
/// weighing.at, or with `ties` at least that, whose weight is at least weighing.floor; 0 for the
/// others. `out` is the row's: element i goes to out[i].
template <class Element>
using ShareScan = void (*)(const Element* row, int64_t begin, int64_t end, const Weighing& weighing,
                           bool ties, float share, float* out);

}  // namespace aegis::kernels
