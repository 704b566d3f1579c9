// decode_attention on the GPU: a block of threads for a piece of a range and up to Heads query
// heads that share its keys; then the pieces of each head are put together.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/simt.cuh"

namespace aegis::kernels::cuda {

constexpr int kAttentionThreads = 128, kAttentionWarps = kAttentionThreads / 32;
constexpr int kKeyLanes = 8;       // threads that share a key
constexpr int kTileColumns = 128;  // of values: 4 to a lane

/// Four elements of a value, or those of them that there are.
template <class Element>
struct alignas(4 * sizeof(Element)) FourElements {
  Element elements[4];
};
template <class Element>
struct alignas(16) KeyPack {
  static constexpr int kSize = 16 / sizeof(Element);
  Element elements[kSize];
};

/// The positions that a batch row attends to.
struct DeviceRange {
  int64_t row, begin, end, pieces;
  bool valid;

  __device__ int64_t cut(int64_t piece) const { return begin + (end - begin) * piece / pieces; }
};

template <class Element>
__device__ DeviceRange range_of(const DecodeAttentionOnDevice<Element>& d, int64_t batch_row) {
  const int64_t start = d.spans[batch_row * d.span_stride];
  const int64_t end = d.spans[batch_row * d.span_stride + 1];
  const int64_t row = d.rows ? d.rows[batch_row] : batch_row;
  DeviceRange range{row, 0, 0, 0, false};
  if (start < 0 || start > end || row < 0 || row >= d.cache_rows) return range;
  range.begin = d.window > 0 && end - start > d.window ? end - d.window : start;
  const int64_t most = d.job.blocks ? d.row_blocks * d.job.slots : d.job.slots;
  if ((d.job.blocks ? end : end - range.begin) > most) return range;
  range.valid = true;
  range.end = end;
  range.pieces = (end - range.begin + kPiecePositions - 1) / kPiecePositions;
  return range;
}

/// Where a position lies; -1 on a page that is not there.
template <class Element>
__device__ int64_t page_of(const DecodeAttentionOnDevice<Element>& d, int64_t row,
                           int64_t position) {
  if (!d.job.blocks) return row;
  const int64_t page = d.job.blocks[row * d.job.block_row + position / d.job.slots];
  return page < 0 || page >= d.pages ? -1 : page;
}

template <class Element, int Heads>
constexpr size_t attention_shared_bytes(int64_t head_size) {
  return (Heads * head_size + Heads * kPiecePositions + kAttentionWarps * Heads * kTileColumns) *
             sizeof(float) +
         2 * kPiecePositions * sizeof(int64_t);
}

/// `packed`: keys and values begin at multiples of KeyPack and FourElements, and are made of them.
template <class Element, int Heads>
__global__ void attend_pieces(DecodeAttentionOnDevice<Element> d, int64_t pieces, bool packed) {
  AEGIS_DYNAMIC_SHARED(int64_t, key_at);  // of each position, in elements; -1: nowhere
  const DecodeAttention<Element>& job = d.job;
  const int64_t size = job.head_size;
  int64_t* const value_at = key_at + kPiecePositions;
  float* const weights = reinterpret_cast<float*>(value_at + kPiecePositions);
  float* const sums = weights + Heads * kPiecePositions;
  float* const query = sums + kAttentionWarps * Heads * kTileColumns;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;

  const int64_t tiles = (job.group + Heads - 1) / Heads;
  const int64_t piece = blockIdx.x % pieces;
  const int64_t first = blockIdx.x / pieces % tiles * Heads;  // head of the group
  const int64_t key_head = blockIdx.x / pieces / tiles % job.key_heads;
  const int64_t batch_row = blockIdx.x / pieces / tiles / job.key_heads;
  const int heads = job.group - first < Heads ? static_cast<int>(job.group - first) : Heads;
  const int64_t head = key_head * job.group + first;
  const DeviceRange range = range_of(d, batch_row);
  const int64_t begin = piece < range.pieces ? range.cut(piece) : 0;
  const int count = piece < range.pieces ? static_cast<int>(range.cut(piece + 1) - begin) : 0;
  float* const part = d.parts + ((batch_row * d.heads() + head) * pieces + piece) * (2 + size);
  const int64_t next_part = pieces * (2 + size);

  for (int i = thread; i < count; i += kAttentionThreads) {
    const int64_t page = page_of(d, range.row, begin + i), slot = (begin + i) % job.slots;
    key_at[i] = page < 0 ? -1 : page * job.key_row + key_head * job.key_head + slot * job.key_slot;
    value_at[i] =
        page < 0 ? -1 : page * job.value_row + key_head * job.value_head + slot * job.value_slot;
  }
  if (count > 0) {
    for (int64_t i = thread; i < Heads * size; i += kAttentionThreads) {
      const int64_t h = i / size;
      query[i] =
          h < heads
              ? to_float(
                    job.query[batch_row * job.query_row + (head + h) * job.query_head + i % size])
              : 0;
    }
  }
  __syncthreads();

  // Scores. Every lane of a warp goes as often around, since all take part in the shuffles.
  for (int at = warp * (32 / kKeyLanes); at < count; at += kAttentionThreads / kKeyLanes) {
    const int position = at + lane / kKeyLanes, part_of_key = lane % kKeyLanes;
    const bool there = position < count && key_at[position] >= 0;
    float dots[Heads] = {};
    if (there) {
      using Pack = KeyPack<Element>;
      const Element* key = job.keys + key_at[position];
      const int64_t packs = packed ? size / Pack::kSize : 0;
#pragma unroll 2
      for (int64_t i = part_of_key; i < packs; i += kKeyLanes) {
        const Pack elements = reinterpret_cast<const Pack*>(key)[i];
#pragma unroll
        for (int h = 0; h < Heads; ++h) {
#pragma unroll
          for (int j = 0; j < Pack::kSize; ++j) {
            dots[h] += query[h * size + i * Pack::kSize + j] * to_float(elements.elements[j]);
          }
        }
      }
      for (int64_t i = packs * Pack::kSize + part_of_key; i < size; i += kKeyLanes) {
#pragma unroll
        for (int h = 0; h < Heads; ++h) dots[h] += query[h * size + i] * to_float(key[i]);
      }
    }
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      for (int mask = kKeyLanes / 2; mask > 0; mask /= 2) {
        dots[h] += __shfl_xor_sync(0xffffffffu, dots[h], mask);
      }
      float score = dots[h] * job.scale;
      if (job.softcap > 0) score = job.softcap * tanhf(score / job.softcap);
      if (part_of_key == 0 && position < count) {
        weights[h * kPiecePositions + position] = there ? score : NAN;
      }
    }
  }
  __syncthreads();

  // Weights: a warp has a head at a time.
  for (int h = warp; h < heads; h += kAttentionWarps) {
    float* const row = weights + h * kPiecePositions;
    float largest = -INFINITY, sum = 0;
    for (int i = lane; i < count; i += 32) largest = fmaxf(largest, row[i]);
    for (int mask = 16; mask > 0; mask /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
    }
    const float shift = largest == -INFINITY ? 0 : largest;
    for (int i = lane; i < count; i += 32) {
      row[i] = expf(row[i] - shift);
      sum += row[i];
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (lane == 0 && count > 0) {
      part[h * next_part] = largest;
      part[h * next_part + 1] = sum;
    }
  }
  __syncthreads();

  // Values, some columns at a time: as many lanes as they need have a position; warps take turns.
  const int64_t columns_there = size < kTileColumns ? size : kTileColumns;
  int lanes = 1;
  while (4 * lanes < columns_there) lanes *= 2;
  const int together = 32 / lanes;  // positions of a warp
  for (int64_t tile = 0; tile < size; tile += kTileColumns) {
    const int64_t column = tile + lane % lanes * 4;
    const int left = size - column < 0   ? 0
                     : size - column < 4 ? static_cast<int>(size - column)
                                         : 4;
    float added[Heads][4] = {};
#pragma unroll 4
    for (int i = warp * together + lane / lanes; i < count; i += kAttentionWarps * together) {
      if (value_at[i] < 0) continue;
      const Element* value = job.values + value_at[i] + column;
      FourElements<Element> four = {};
      if (packed && left == 4) {
        four = *reinterpret_cast<const FourElements<Element>*>(value);
      } else {
        for (int j = 0; j < left; ++j) four.elements[j] = value[j];
      }
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        const float weight = weights[h * kPiecePositions + i];
#pragma unroll
        for (int j = 0; j < 4; ++j) added[h][j] += weight * to_float(four.elements[j]);
      }
    }
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        for (int mask = lanes; mask < 32; mask *= 2) {
          added[h][j] += __shfl_xor_sync(0xffffffffu, added[h][j], mask);
        }
        if (lane < lanes) sums[(warp * Heads + h) * kTileColumns + lane * 4 + j] = added[h][j];
      }
    }
    __syncthreads();
    for (int i = thread; count > 0 && i < heads * kTileColumns; i += kAttentionThreads) {
      const int h = i / kTileColumns, in_tile = i % kTileColumns;
      if (tile + in_tile >= size) continue;
      float sum = 0;
      for (int w = 0; w < kAttentionWarps; ++w)
        sum += sums[(w * Heads + h) * kTileColumns + in_tile];
      part[h * next_part + 2 + tile + in_tile] = sum;
    }
    __syncthreads();
  }
}

/// A block for each query head.
template <class Element>
__global__ void combine_pieces(DecodeAttentionOnDevice<Element> d, int64_t pieces) {
  const int64_t size = d.job.head_size, stride = 2 + size;
  const DeviceRange range = range_of(d, blockIdx.x / d.heads());
  const float* const part = d.parts + blockIdx.x * pieces * stride;
  float largest = -INFINITY, weight = 0;
  for (int64_t i = 0; i < range.pieces; ++i) largest = fmaxf(largest, part[i * stride]);
  const float shift = largest == -INFINITY ? 0 : largest;
  for (int64_t i = 0; i < range.pieces; ++i) {
    weight += expf(part[i * stride] - shift) * part[i * stride + 1];
  }
  for (int64_t column = threadIdx.x; column < size; column += blockDim.x) {
    float sum = 0;
    for (int64_t i = 0; i < range.pieces; ++i) {
      sum += expf(part[i * stride] - shift) * part[i * stride + 2 + column];
    }
    const float value = !range.valid ? NAN : range.pieces > 0 ? sum / weight : 0;
    d.job.out[blockIdx.x * size + column] = from_float<Element>(value);
  }
}

}  // namespace aegis::kernels::cuda
