// decode_attention: the newest token of each row attends to a range of positions in its key-value
// cache.
#pragma once

#include <cstdint>

#include "core/cpu.h"
#include "kernels/element.h"

namespace aegis::kernels {

/// What a kernel reads and writes. Position p of a cache row lies in slot p mod `slots` of that
/// row; where there are blocks, of page blocks[row][p div slots], and a page is what is a row of
/// keys elsewhere. All pointers are in one memory (host or one GPU), aligned to their elements and
/// no further; nothing is owned. Strides are in elements; those of the last dimension are 1.
/// `Element` is float, Half or BFloat16.
///
/// For each query head, over the positions p of its range:
///   score(p) = scale · query·key(p), then softcap · tanh(score / softcap) where softcap > 0
///   out = Σ exp(score(p)) · value(p) / Σ exp(score(p))
/// All of it is float32 and rounded to `Element` once; exponentials are good to 2 units in the last
/// place, those below 2⁻¹²⁶ of the largest count as zero. Every version adds in an order of its
/// own, but always in the same, whatever the number of threads. NaN goes through; slots outside of
/// the range are never read. With avx512_bf16, whose instruction does so, bfloat16 numbers below
/// 2⁻¹²⁶ count as zero in query·key.
template <class Element>
struct DecodeAttention {
  const Element* query;  ///< (batch, heads, head_size)
  int64_t query_row, query_head;
  const Element* keys;  ///< (rows, key_heads, slots, head_size)
  int64_t key_row, key_head, key_slot;
  const Element* values;  ///< as keys
  int64_t value_row, value_head, value_slot;
  Element* out;   ///< (batch, heads, head_size), contiguous; shares no memory with the others
  int64_t group;  ///< query heads to a key head: adjacent ones share it
  int64_t key_heads;
  int64_t slots;
  int64_t head_size;
  float scale;
  float softcap;                    ///< 0: none
  const int64_t* blocks = nullptr;  ///< pages of each row, or null
  int64_t block_row = 0;            ///< from a row of blocks to the next
};

/// Long ranges are cut into pieces that threads work on side by side, each with a softmax of its
/// own, and put together at the end (flash-decoding: Dao, Haziza, Massa, Sizov 2023).
struct AttentionPiece {
  int64_t batch_row;
  int64_t cache_row;
  int64_t key_head;
  int64_t begin, end;  ///< positions, 0 <= begin < end; without blocks, end <= begin + slots
};

/// Positions in a piece, at most. The pieces of a range depend on its length and on nothing else,
/// so that results do not depend on who works on them.
constexpr int64_t kPiecePositions = 256;

/// The longest range: its positions times its pieces fit 64 bits.
constexpr int64_t kMostPositions = int64_t{1} << 35;

/// A part is the result of a piece for one query head, in part_size(head_size) floats: the largest
/// score at kLargest; Σ exp(score − largest) at kWeight; Σ exp(score − largest) · value from kSums
/// on, in an order that is the version's own.
constexpr int64_t kLargest = 0, kWeight = 1, kSums = 16;
// static: each instruction set compiles a copy of its own.
static constexpr int64_t part_size(int64_t head_size) { return kSums + (head_size + 31) / 32 * 32; }

template <class Element>
struct DecodeAttentionKernel {
  /// Writes `group` parts, one after the other.
  void (*attend)(const DecodeAttention<Element>&, const AttentionPiece&, float* parts);
  /// Puts `count` times `group` parts together and writes the `group` heads of `out` that share
  /// `key_head`. No parts: zeros.
  void (*combine)(const DecodeAttention<Element>&, int64_t batch_row, int64_t key_head,
                  const float* parts, int64_t count);
};

/// The fastest kernel at or below `isa`. Costs a table look-up.
template <class Element>
DecodeAttentionKernel<Element> decode_attention_kernel(Isa isa = active_isa());

/// Every type the kernels are built for: X(Element).
#define AEGIS_DECODE_ATTENTION_TYPES(X) X(float) X(Half) X(BFloat16)

}  // namespace aegis::kernels
