// The loops shared by the vector versions of decode_attention.
#pragma once

#include "kernels/attention_math.h"
#include "kernels/decode_attention.h"

namespace aegis::kernels {

// One pass over memory: of each block of positions, first the keys are read, which gives scores;
// then the sums so far are scaled to the new largest score (online softmax: Milakov, Gimelshein
// 2018) while the values are added to them. The query heads of a group take their turns at a block
// while it is near.
//
// `Lanes` lives in an anonymous namespace of its ISA's file, which gives every instantiation here
// internal linkage, so the linker cannot swap one ISA's copy for another's. Besides the arithmetic
// that attention_math.h asks for, it has:
//   Element            a type of DecodeAttention
//   kWidth             elements taken at a time
//   kVectors           Floats that hold as many
//   kQueries           query heads whose sums the registers hold: 2 or 4
//   Dots               kWidth elements, as products of keys and queries want them
//   dots(p), dots(p, n)     the second reads n < kWidth elements and no more; the others are zero
//   dot(sum, query, key)    sum + query · key
//   totals(p, out)     four Floats at p, each added up, to four floats at out
//   widen(p, out), widen(p, n, out)    elements to kVectors Floats at out, in some order
//   narrow(in, p), narrow(in, p, n)    and back

constexpr int64_t kBlock = 64;  // positions

/// 1 to kBlock adjacent slots of a buffer.
template <class Lanes>
struct BlockOfSlots {
  using Element = typename Lanes::Element;
  const Element* keys;
  const Element* values;
  int64_t key_slot, value_slot;
  int64_t count;

  const Element* key(int64_t position) const { return keys + position * key_slot; }
  const Element* value(int64_t position) const { return values + position * value_slot; }
};

/// 1 to kBlock positions wherever their pages are. The same arithmetic in the same order.
template <class Lanes>
struct BlockOfPages {
  using Element = typename Lanes::Element;
  const Element* keys[kBlock];
  const Element* values[kBlock];
  int64_t count;

  const Element* key(int64_t position) const { return keys[position]; }
  const Element* value(int64_t position) const { return values[position]; }
};

/// Scores of `Queries` heads: kBlock floats for each at `scores`, −∞ behind the block's end.
template <class Lanes, int Queries, class Block>
inline void block_scores(const DecodeAttention<typename Lanes::Element>& job, const Block& block,
                         const typename Lanes::Element* query, float* scores) {
  using Element = typename Lanes::Element;
  using Floats = typename Lanes::Floats;
  for (int64_t at = 0; at < block.count; at += 4) {
    const Element* keys[4];
    for (int64_t i = 0; i < 4; ++i) {  // behind the end: the last one again
      keys[i] = block.key(at + i < block.count ? at + i : block.count - 1);
    }
    // The values are wanted next, and behind the end of a block no hardware looks ahead.
    for (int64_t i = 0; i < 4 && at + i < block.count; ++i) {
      const char* line = reinterpret_cast<const char*>(block.value(at + i));
      const int64_t bytes = job.head_size * static_cast<int64_t>(sizeof(Element));
      for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(line + b, 0, 3);
    }
    Floats sums[4 * Queries] = {};
    const auto add = [&](int64_t i, auto... n) __attribute__((always_inline)) {
      typename Lanes::Dots part[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) part[k] = Lanes::dots(keys[k] + i, n...);
#pragma GCC unroll 4
      for (int q = 0; q < Queries; ++q) {
        const typename Lanes::Dots head = Lanes::dots(query + q * job.query_head + i, n...);
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) sums[4 * q + k] = Lanes::dot(sums[4 * q + k], head, part[k]);
      }
    };
    int64_t i = 0;
    for (; i + Lanes::kWidth <= job.head_size; i += Lanes::kWidth) add(i);
    if (i < job.head_size) add(i, job.head_size - i);
#pragma GCC unroll 4
    for (int q = 0; q < Queries; ++q) Lanes::totals(sums + 4 * q, scores + q * kBlock + at);
  }
  const Floats scale = Lanes::all(job.scale);
  for (int q = 0; q < Queries; ++q) {
    float* row = scores + q * kBlock;
    const auto fill_behind = [&](float value) {
      for (int64_t at = block.count; at % Lanes::kFloats != 0; ++at) row[at] = value;
    };
    fill_behind(0);
    for (int64_t at = 0; at < block.count; at += Lanes::kFloats) {
      Floats score = Lanes::mul(Lanes::load(row + at), scale);
      if (job.softcap > 0) score = soft_cap<Lanes>(score, job.softcap);
      Lanes::store(row + at, score);
    }
    fill_behind(kNoScore);
  }
}

/// Scores become weights. Returns what the sums so far are to be multiplied by.
template <class Lanes>
inline float block_weights(float* scores, int64_t count, float* part) {
  using Floats = typename Lanes::Floats;
  Floats top = Lanes::load(scores);
  for (int64_t at = Lanes::kFloats; at < count; at += Lanes::kFloats) {
    top = Lanes::max(top, Lanes::load(scores + at));
  }
  const float before = part[kLargest], here = Lanes::largest(top);
  const float largest = here > before ? here : before;
  const Floats shift = Lanes::all(largest == kNoScore ? 0 : largest);
  Floats sum = {};
  for (int64_t at = 0; at < count; at += Lanes::kFloats) {
    const Floats weight = exponential<Lanes>(Lanes::sub(Lanes::load(scores + at), shift));
    Lanes::store(scores + at, weight);
    sum = Lanes::add(sum, weight);
  }
  const float kept = Lanes::first(exponential<Lanes>(Lanes::sub(Lanes::all(before), shift)));
  part[kLargest] = largest;
  part[kWeight] = part[kWeight] * kept + Lanes::total(sum);
  return kept;
}

/// Elements [i, i + Steps · kWidth) of the sums, or [i, i + n).
template <class Lanes, int Queries, int Steps, class Block, class... Count>
inline void add_values(const DecodeAttention<typename Lanes::Element>& job, const Block& block,
                       const float* weights, const float* kept, float* parts, int64_t i,
                       Count... n) {
  using Floats = typename Lanes::Floats;
  constexpr int kTile = Steps * Lanes::kVectors;
  const int64_t stride = part_size(job.head_size);
  float* at = parts + kSums + i;
  Floats sums[Queries * kTile];
#pragma GCC unroll 4
  for (int q = 0; q < Queries; ++q) {
    const Floats factor = Lanes::all(kept[q]);
#pragma GCC unroll 4
    for (int t = 0; t < kTile; ++t) {
      sums[q * kTile + t] = Lanes::mul(Lanes::load(at + q * stride + t * Lanes::kFloats), factor);
    }
  }
  for (int64_t position = 0; position < block.count; ++position) {
    const typename Lanes::Element* row = block.value(position) + i;
    Floats values[kTile];
#pragma GCC unroll 4
    for (int s = 0; s < Steps; ++s) {
      Lanes::widen(row + s * Lanes::kWidth, n..., values + s * Lanes::kVectors);
    }
#pragma GCC unroll 4
    for (int q = 0; q < Queries; ++q) {
      const Floats weight = Lanes::all(weights[q * kBlock + position]);
#pragma GCC unroll 4
      for (int t = 0; t < kTile; ++t) {
        sums[q * kTile + t] = Lanes::fma(weight, values[t], sums[q * kTile + t]);
      }
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < Queries; ++q) {
#pragma GCC unroll 4
    for (int t = 0; t < kTile; ++t) {
      Lanes::store(at + q * stride + t * Lanes::kFloats, sums[q * kTile + t]);
    }
  }
}

template <class Lanes, int Queries, class Block>
inline void attend_block(const DecodeAttention<typename Lanes::Element>& job, const Block& block,
                         const typename Lanes::Element* query, float* parts) {
  alignas(64) float weights[Queries * kBlock];
  float kept[Queries];
  block_scores<Lanes, Queries>(job, block, query, weights);
  for (int q = 0; q < Queries; ++q) {
    kept[q] = block_weights<Lanes>(weights + q * kBlock, block.count,
                                   parts + q * part_size(job.head_size));
  }
  constexpr int kSteps = 4 / Lanes::kVectors;
  const int64_t size = job.head_size;
  int64_t i = 0;
  for (; i + kSteps * Lanes::kWidth <= size; i += kSteps * Lanes::kWidth) {
    add_values<Lanes, Queries, kSteps>(job, block, weights, kept, parts, i);
  }
  for (; i + Lanes::kWidth <= size; i += Lanes::kWidth) {
    add_values<Lanes, Queries, 1>(job, block, weights, kept, parts, i);
  }
  if (i < size) add_values<Lanes, Queries, 1>(job, block, weights, kept, parts, i, size - i);
}

/// All heads of a group.
template <class Lanes, class Block>
inline void attend_group(const DecodeAttention<typename Lanes::Element>& job, const Block& block,
                         const typename Lanes::Element* query, float* parts) {
  for (int64_t member = 0, step = 0; member < job.group; member += step) {
    const int64_t members = job.group - member;
    const auto* heads = query + member * job.query_head;
    float* part = parts + member * part_size(job.head_size);
    if (Lanes::kQueries >= 4 && members >= 4) {
      step = 4;
      attend_block<Lanes, Lanes::kQueries>(job, block, heads, part);
    } else if (members >= 2) {
      step = 2;
      attend_block<Lanes, 2>(job, block, heads, part);
    } else {
      step = 1;
      attend_block<Lanes, 1>(job, block, heads, part);
    }
  }
}

/// Slots of one buffer, which may go round its end.
template <class Lanes>
inline void attend_slots(const DecodeAttention<typename Lanes::Element>& job,
                         const AttentionPiece& piece, const typename Lanes::Element* query,
                         float* parts) {
  const auto* keys = job.keys + piece.cache_row * job.key_row + piece.key_head * job.key_head;
  const auto* values =
      job.values + piece.cache_row * job.value_row + piece.key_head * job.value_head;
  int64_t slot = piece.begin % job.slots, count = 0;
  for (int64_t left = piece.end - piece.begin; left > 0; left -= count) {
    count = left < kBlock ? left : kBlock;
    if (count > job.slots - slot) count = job.slots - slot;
    const BlockOfSlots<Lanes> block{keys + slot * job.key_slot, values + slot * job.value_slot,
                                    job.key_slot, job.value_slot, count};
    attend_group<Lanes>(job, block, query, parts);
    slot += count;
    if (slot == job.slots) slot = 0;
  }
}

template <class Lanes>
inline void attend_pages(const DecodeAttention<typename Lanes::Element>& job,
                         const AttentionPiece& piece, const typename Lanes::Element* query,
                         float* parts) {
  const int64_t* next = job.blocks + piece.cache_row * job.block_row + piece.begin / job.slots;
  const auto* keys = job.keys + piece.key_head * job.key_head;
  const auto* values = job.values + piece.key_head * job.value_head;
  BlockOfPages<Lanes> block;
  int64_t page = *next++, slot = piece.begin % job.slots;
  for (int64_t left = piece.end - piece.begin; left > 0; left -= block.count) {
    block.count = left < kBlock ? left : kBlock;
    for (int64_t i = 0; i < block.count; ++i, ++slot) {
      if (slot == job.slots) {
        page = *next++;
        slot = 0;
      }
      block.keys[i] = keys + page * job.key_row + slot * job.key_slot;
      block.values[i] = values + page * job.value_row + slot * job.value_slot;
    }
    attend_group<Lanes>(job, block, query, parts);
  }
}

template <class Lanes>
inline void attend_piece(const DecodeAttention<typename Lanes::Element>& job,
                         const AttentionPiece& piece, float* parts) {
  const int64_t stride = part_size(job.head_size);
  for (int64_t member = 0; member < job.group; ++member) {
    float* part = parts + member * stride;
    for (int64_t i = 0; i < stride; i += Lanes::kFloats) Lanes::store(part + i, Lanes::all(0));
    part[kLargest] = kNoScore;
  }
  const auto* query =
      job.query + piece.batch_row * job.query_row + piece.key_head * job.group * job.query_head;
  if (job.blocks) {
    attend_pages<Lanes>(job, piece, query, parts);
  } else {
    attend_slots<Lanes>(job, piece, query, parts);
  }
}

template <class Lanes>
inline void combine_pieces(const DecodeAttention<typename Lanes::Element>& job, int64_t batch_row,
                           int64_t key_head, const float* parts, int64_t count) {
  using Floats = typename Lanes::Floats;
  const int64_t size = job.head_size, stride = part_size(size), next = job.group * stride;
  for (int64_t member = 0; member < job.group; ++member) {
    auto* out = job.out + ((batch_row * job.key_heads + key_head) * job.group + member) * size;
    const float* part = parts + member * stride;
    float largest = kNoScore;
    for (int64_t i = 0; i < count; ++i) {
      const float here = part[i * next + kLargest];
      if (here > largest) largest = here;
    }
    const Floats shift = Lanes::all(largest == kNoScore ? 0 : largest);
    const auto kept = [&](int64_t i) __attribute__((always_inline)) {
      return exponential<Lanes>(Lanes::sub(Lanes::all(part[i * next + kLargest]), shift));
    };
    Floats weight = {};
    for (int64_t i = 0; i < count; ++i) {
      weight = Lanes::fma(kept(i), Lanes::all(part[i * next + kWeight]), weight);
    }
    for (int64_t at = 0; at < size; at += Lanes::kWidth) {
      Floats sums[Lanes::kVectors] = {};
      for (int64_t i = 0; i < count; ++i) {
        const float* from = part + i * next + kSums + at;
        const Floats factor = kept(i);
        for (int v = 0; v < Lanes::kVectors; ++v) {
          sums[v] = Lanes::fma(factor, Lanes::load(from + v * Lanes::kFloats), sums[v]);
        }
      }
      if (count > 0) {
        for (int v = 0; v < Lanes::kVectors; ++v) sums[v] = Lanes::div(sums[v], weight);
      }
      if (at + Lanes::kWidth <= size) {
        Lanes::narrow(sums, out + at);
      } else {
        Lanes::narrow(sums, out + at, size - at);
      }
    }
  }
}

}  // namespace aegis::kernels
