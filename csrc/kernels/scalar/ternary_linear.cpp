// The oracle: one trit at a time.
#include "kernels/ternary_linear.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace aegis::kernels::scalar {
namespace {

/// -1, 0 or +1; of a code of 11, which is refused, 0.
int trit_at(const uint32_t* words, int64_t i) {
  const uint32_t code = words[i / kTritsInWord] >> 2 * (i % kTritsInWord) & 3;
  return static_cast<int>(code & 1) - static_cast<int>(code >> 1);
}

/// Whether `words` are those of a row of `k` trits.
bool valid(const uint32_t* words, int64_t k) {
  const int64_t count = trit_words(k), used = k % kTritsInWord;
  if (used != 0 && words[count - 1] >> 2 * used != 0) return false;
  return std::all_of(words, words + count,
                     [](uint32_t word) { return (word & word >> 1 & kLowBits) == 0; });
}

}  // namespace

template <class Element>
void ternary_prepare(const TernaryLinear<Element>& job, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const Element* x = job.x + row * job.k;
    int8_t* values = job.values + row * ternary_padded(job.k);
    std::fill_n(values, ternary_padded(job.k), int8_t{0});
    job.sums[row] = 0;
    float largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < job.k; ++i) {
      finite = finite && std::isfinite(to_float(x[i]));
      largest = std::max(largest, std::abs(to_float(x[i])));
    }
    if (!finite || largest == 0) {
      job.scales[row] = finite ? 1.0f : std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    job.scales[row] = largest / 127;
    // 127 / largest would be infinite for the smallest numbers; times a power of two is exact.
    const float enlarged = largest < 0x1p-100f ? 0x1p100f : 1.0f;
    const float factor = 127 / (largest * enlarged);
    for (int64_t i = 0; i < job.k; ++i) {
      const auto value = static_cast<int8_t>(std::nearbyint(to_float(x[i]) * enlarged * factor));
      values[ternary_place(i)] = value;
      job.sums[row] += value;
    }
  }
}

template <class Element>
bool ternary_columns(const TernaryLinear<Element>& job, int64_t begin, int64_t end) {
  bool all_valid = true;
  const int64_t words = trit_words(job.k);
  for (int64_t column = begin; column < end; ++column) {
    const uint32_t* packed = job.packed + column * words;
    all_valid = valid(packed, job.k) && all_valid;
    for (int64_t row = 0; row < job.rows; ++row) {
      const int8_t* values = job.values + row * ternary_padded(job.k);
      int32_t sum = 0;
      for (int64_t i = 0; i < job.k; ++i) sum += trit_at(packed, i) * values[ternary_place(i)];
      const float scale = job.scales[row] * job.scale[column * job.scale_stride];
      float out = static_cast<float>(sum) * scale;
      if (job.bias) out += to_float(job.bias[column]);
      job.out[row * job.n + column] = from_float<Element>(out);
    }
  }
  return all_valid;
}

template <class Element>
void ternary_prepare_exact(const TernaryLinear<Element>& job, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* floats = job.floats + row * ternary_padded(job.k);
    std::fill_n(floats, ternary_padded(job.k), 0.0f);
    for (int64_t i = 0; i < job.k; ++i) floats[i] = to_float(job.x[row * job.k + i]);
  }
}

template <class Element>
bool ternary_columns_exact(const TernaryLinear<Element>& job, int64_t begin, int64_t end) {
  bool all_valid = true;
  const int64_t words = trit_words(job.k);
  for (int64_t column = begin; column < end; ++column) {
    const uint32_t* packed = job.packed + column * words;
    all_valid = valid(packed, job.k) && all_valid;
    for (int64_t row = 0; row < job.rows; ++row) {
      const float* floats = job.floats + row * ternary_padded(job.k);
      float sum = 0;
      for (int64_t i = 0; i < job.k; ++i) {
        const int trit = trit_at(packed, i);
        if (trit > 0) sum += floats[i];
        if (trit < 0) sum -= floats[i];
      }
      float out = sum * job.scale[column * job.scale_stride];
      if (job.bias) out += to_float(job.bias[column]);
      job.out[row * job.n + column] = from_float<Element>(out);
    }
  }
  return all_valid;
}

#define AEGIS_INSTANTIATE(Element)                                                      \
  template void ternary_prepare(const TernaryLinear<Element>&, int64_t, int64_t);       \
  template bool ternary_columns(const TernaryLinear<Element>&, int64_t, int64_t);       \
  template void ternary_prepare_exact(const TernaryLinear<Element>&, int64_t, int64_t); \
  template bool ternary_columns_exact(const TernaryLinear<Element>&, int64_t, int64_t);
AEGIS_TERNARY_LINEAR_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::scalar
