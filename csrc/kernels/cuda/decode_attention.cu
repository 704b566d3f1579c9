#include "kernels/cuda/decode_attention.h"

#include <stdexcept>

#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/launch.h"

namespace aegis::kernels::cuda {
namespace {

/// Whether all keys and values begin at multiples of what is loaded at once.
template <class Element>
bool is_packed(const DecodeAttention<Element>& job) {
  const auto bytes = static_cast<int64_t>(sizeof(Element));
  const int64_t strides = job.key_row | job.key_head | job.key_slot | job.value_row |
                          job.value_head | job.value_slot | job.head_size;
  const uint64_t all = reinterpret_cast<uint64_t>(job.keys) |
                       reinterpret_cast<uint64_t>(job.values) |
                       static_cast<uint64_t>(strides * bytes);
  return all % 16 == 0;
}

unsigned grid_of(int64_t blocks) {
  if (blocks > INT32_MAX) {
    throw std::runtime_error("decode_attention: expected at most 2^31 - 1 blocks of threads, got " +
                             std::to_string(blocks));
  }
  return static_cast<unsigned>(blocks);
}

template <class Element, int Heads>
void launch_pieces(const DecodeAttentionOnDevice<Element>& d, int64_t pieces, CUstream_st* stream) {
  const int64_t tiles = (d.job.group + Heads - 1) / Heads;
  const int64_t blocks = pieces * tiles * d.job.key_heads * d.batch;
  launch("decode_attention", attend_pieces<Element, Heads>, grid_of(blocks), kAttentionThreads,
         attention_shared_bytes<Element, Heads>(d.job.head_size), stream, d, pieces,
         is_packed(d.job));
}

}  // namespace

template <class Element>
void launch_decode_attention(const DecodeAttentionOnDevice<Element>& d, CUstream_st* stream) {
  if (d.batch == 0 || d.heads() == 0 || d.job.head_size == 0) return;
  const int64_t pieces = d.pieces();
  const unsigned heads = grid_of(d.batch * d.heads());
  // Fewer heads together where their queries would fill the shared memory.
  const bool wide = d.job.head_size > 512;
  if (d.job.group == 1 || wide) {
    launch_pieces<Element, 1>(d, pieces, stream);
  } else if (d.job.group == 2) {
    launch_pieces<Element, 2>(d, pieces, stream);
  } else if (d.job.group <= 4) {
    launch_pieces<Element, 4>(d, pieces, stream);
  } else {
    launch_pieces<Element, 8>(d, pieces, stream);
  }
  launch("decode_attention", combine_pieces<Element>, heads, kAttentionThreads, 0, stream, d,
         pieces);
}

#define AEGIS_INSTANTIATE(Element) \
  template void launch_decode_attention(const DecodeAttentionOnDevice<Element>&, CUstream_st*);
AEGIS_DECODE_ATTENTION_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::cuda
