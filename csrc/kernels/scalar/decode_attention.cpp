// The oracle: one position after the other.
#include "kernels/decode_attention.h"

#include <cmath>

namespace aegis::kernels::scalar {
namespace {

constexpr float kNothing = -INFINITY;

/// Where every score is −∞ there is no largest to subtract.
float shift_of(float largest) { return largest == kNothing ? 0 : largest; }

}  // namespace

template <class Element>
void attend(const DecodeAttention<Element>& job, const AttentionPiece& piece, float* parts) {
  const int64_t size = job.head_size;
  for (int64_t member = 0; member < job.group; ++member) {
    const Element* query = job.query + piece.batch_row * job.query_row +
                           (piece.key_head * job.group + member) * job.query_head;
    float* part = parts + member * part_size(size);
    float* sums = part + kSums;
    for (int64_t i = 0; i < size; ++i) sums[i] = 0;
    float largest = kNothing, weight_sum = 0;
    for (int64_t position = piece.begin; position < piece.end; ++position) {
      const int64_t slot = position % job.slots;
      const int64_t row = job.blocks
                              ? job.blocks[piece.cache_row * job.block_row + position / job.slots]
                              : piece.cache_row;
      const Element* key =
          job.keys + row * job.key_row + piece.key_head * job.key_head + slot * job.key_slot;
      const Element* value = job.values + row * job.value_row + piece.key_head * job.value_head +
                             slot * job.value_slot;
      float score = 0;
      for (int64_t i = 0; i < size; ++i) score += to_float(query[i]) * to_float(key[i]);
      score *= job.scale;
      if (job.softcap > 0) score = job.softcap * std::tanh(score / job.softcap);

      const float before = largest;
      if (score > largest) largest = score;
      const float kept = std::exp(before - shift_of(largest));
      const float weight = std::exp(score - shift_of(largest));
      for (int64_t i = 0; i < size; ++i) sums[i] = sums[i] * kept + weight * to_float(value[i]);
      weight_sum = weight_sum * kept + weight;
    }
    part[kLargest] = largest;
    part[kWeight] = weight_sum;
  }
}

template <class Element>
void combine(const DecodeAttention<Element>& job, int64_t batch_row, int64_t key_head,
             const float* parts, int64_t count) {
  const int64_t size = job.head_size, stride = part_size(size);
  for (int64_t member = 0; member < job.group; ++member) {
    Element* out = job.out + ((batch_row * job.key_heads + key_head) * job.group + member) * size;
    const float* part = parts + member * stride;
    const int64_t next = job.group * stride;  // from a part to that of the piece behind
    float largest = kNothing, weight = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::fmax(largest, part[i * next + kLargest]);
    const auto kept = [&](int64_t i) {
      return std::exp(part[i * next + kLargest] - shift_of(largest));
    };
    for (int64_t i = 0; i < count; ++i) weight += part[i * next + kWeight] * kept(i);
    for (int64_t at = 0; at < size; ++at) {
      float sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += part[i * next + kSums + at] * kept(i);
      out[at] = from_float<Element>(count ? sum / weight : 0);
    }
  }
}

#define AEGIS_INSTANTIATE(Element)                                                      \
  template void attend(const DecodeAttention<Element>&, const AttentionPiece&, float*); \
  template void combine(const DecodeAttention<Element>&, int64_t, int64_t, const float*, int64_t);
AEGIS_DECODE_ATTENTION_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::scalar
