// The loops shared by the vector versions of float8_linear.
#pragma once

#include "kernels/float8_linear.h"
#include "kernels/skinny_rows.h"

namespace aegis::kernels {

// Up to eight rows of x: a decoded vector of weights meets up to four of them in registers, and the
// weights are read as several streams (see skinny_rows.h). More rows: a tile of weights is decoded
// once, into the first-level cache, and meets every row there.
//
// `Lanes` lives in an anonymous namespace of its ISA's file, which gives every instantiation here
// internal linkage, so the linker cannot swap one ISA's copy for another's. It has:
//   Value, Vector, Sum       a decoded element (float, or 16 bits), some of them, float32 sums
//   kWidth                   elements in a Vector
//   kFloats, kSums           floats in a Sum; how many Sums the registers hold
//   kStreamRows, kTileRows   rows of x that a stream and a tile take at once: up to 4
//   kDecodesNan              whether decode knows NaN; otherwise has_nan is asked
//   decode(p, out), decode(p, n, out)   2 · kWidth values, of which n are read and the others zero,
//                            as two Vectors, in an order that is the same for x and for weights
//   spread(v)                decoded values as they stand in x: with its power of two made good
//   load(p), store(p, v)     Vectors, from and to aligned memory
//   add(sum, x, w)           sum + x · w
//   scaled(total, sum, s)    total + sum · s
//   totals(p, out)           four Sums at p to four floats at out
//   has_nan(p, n)            whether there is a NaN among n values
//   widen_half, narrow_half  conversions of float16

constexpr int64_t kFloat8Chain = 128;  // products that are added up one after another
constexpr int64_t kFloat8Tile = 1024;  // elements of a row in a tile
constexpr int kFloat8TileColumns = 4;

template <class Lanes>
inline const typename Lanes::Value* float8_x(const Float8Linear& job, int64_t row) {
  return reinterpret_cast<const typename Lanes::Value*>(static_cast<const char*>(job.x) +
                                                        row * float8_row_bytes(job.k));
}

template <class Lanes>
inline void float8_put(const Float8Linear& job, int64_t row, int64_t column, float value) {
  const int64_t at = row * job.n + column;
  if (job.type == Float8Result::float32) {
    if (job.bias) value += static_cast<const float*>(job.bias)[column];
    static_cast<float*>(job.out)[at] = value;
  } else if (job.type == Float8Result::float16) {
    if (job.bias) value += Lanes::widen_half(static_cast<const Half*>(job.bias)[column]);
    static_cast<Half*>(job.out)[at] = Lanes::narrow_half(value);
  } else {
    if (job.bias) value += widen_bfloat16(static_cast<const BFloat16*>(job.bias)[column]);
    static_cast<BFloat16*>(job.out)[at] = narrow_bfloat16(value);
  }
}

/// Rows [row, row + Rows) of x with `Streams` rows of weights: columns first, first + apart ...
template <class Lanes, int Rows, int Streams>
inline void float8_products(const Float8Linear& job, int64_t row, int64_t first, int64_t apart) {
  constexpr int64_t kStep = 2 * Lanes::kWidth;
  constexpr int kSums = (Rows * Streams + 3) / 4 * 4;
  using Vector = typename Lanes::Vector;
  typename Lanes::Sum totals[kSums] = {};
  const typename Lanes::Value* x[Rows];
  const uint8_t* weights[Streams];
  for (int r = 0; r < Rows; ++r) x[r] = float8_x<Lanes>(job, row + r);
  for (int s = 0; s < Streams; ++s)
    weights[s] = job.weight + (first + s * apart) * job.weight_stride;

  const int64_t longest = job.group == kFloat8Block ? kFloat8Block : kFloat8Chain * Lanes::kFloats;
  for (int64_t at = 0; at < job.k; at += longest) {
    const int64_t end = job.k - at < longest ? job.k : at + longest;
    typename Lanes::Sum sums[kSums] = {};
    const auto add = [&](int64_t i, auto... count) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int s = 0; s < Streams; ++s) {
        Vector weight[2];
        Lanes::decode(weights[s] + i, count..., weight);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          typename Lanes::Sum& sum = sums[s * Rows + r];
          sum = Lanes::add(sum, Lanes::load(x[r] + i), weight[0]);
          sum = Lanes::add(sum, Lanes::load(x[r] + i + Lanes::kWidth), weight[1]);
        }
      }
    };
    int64_t i = at;
    for (; i + kLine <= end; i += kLine) {
#pragma GCC unroll 8
      for (int s = 0; s < Streams; ++s) __builtin_prefetch(weights[s] + i + kAhead, 0, 2);
#pragma GCC unroll 4
      for (int64_t part = 0; part < kLine; part += kStep) add(i + part);
    }
    for (; i + kStep <= end; i += kStep) add(i);
    if (i < end) add(i, end - i);

    const int64_t group = job.group == kFloat8Block ? at / kFloat8Block : 0;
    for (int s = 0; s < Streams; ++s) {
      const bool nan = !Lanes::kDecodesNan && Lanes::has_nan(weights[s] + at, end - at);
      const float scale =
          nan ? __builtin_nanf("") : job.weight_scale[(first + s * apart) * job.groups + group];
      for (int r = 0; r < Rows; ++r) {
        totals[s * Rows + r] = Lanes::scaled(totals[s * Rows + r], sums[s * Rows + r],
                                             scale * job.x_scale[(row + r) * job.groups + group]);
      }
    }
  }

  float out[kSums];
  for (int i = 0; i < kSums; i += 4) Lanes::totals(totals + i, out + i);
  for (int s = 0; s < Streams; ++s) {
    for (int r = 0; r < Rows; ++r) {
      float8_put<Lanes>(job, row + r, first + s * apart, out[s * Rows + r]);
    }
  }
}

/// All rows, `Rows` or, where that is kTurn, in turns of two to four.
template <class Lanes, int Rows, int Streams>
inline void float8_turns(const Float8Linear& job, int64_t first, int64_t apart) {
  if constexpr (Rows < kTurn) {
    float8_products<Lanes, Rows, Streams>(job, 0, first, apart);
  } else {
    const int64_t half = job.rows <= kTurn ? job.rows : (job.rows + 1) / 2;
    for (int64_t row = 0, rows = half; rows > 0; row += rows, rows = job.rows - row) {
      if (rows == 4) float8_products<Lanes, 4, Streams>(job, row, first, apart);
      if (rows == 3) float8_products<Lanes, 3, Streams>(job, row, first, apart);
      if (rows == 2) float8_products<Lanes, 2, Streams>(job, row, first, apart);
    }
  }
}

template <class Lanes, int Rows>
inline void float8_streams(const Float8Linear& job, int64_t begin, int64_t end) {
  constexpr int kStreams = skinny_streams(Lanes::kSums, Rows);
  const int64_t apart = (end - begin) / kStreams;
  for (int64_t i = 0; i < apart; ++i) {
    float8_turns<Lanes, Rows, kStreams>(job, begin + i, apart);
  }
  for (int64_t column = begin + apart * kStreams; column < end; ++column) {
    float8_turns<Lanes, Rows, 1>(job, column, 0);
  }
}

/// Columns of weights, a piece of each decoded.
template <class Lanes>
struct Float8Tile {
  static constexpr int64_t kGroups = kFloat8Tile / kFloat8Block;
  alignas(64) typename Lanes::Value values[kFloat8TileColumns][kFloat8Tile];
  float scales[kGroups][kFloat8TileColumns];
  int64_t at;     ///< where in the rows the piece begins
  int64_t count;  ///< its elements
  int64_t group;  ///< elements that share a scale: kFloat8Block or kFloat8Tile
};

/// Decodes up to kFloat8Tile elements, from `at` on, of the columns from `column` on. What is past
/// the last of `columns` repeats it.
template <class Lanes>
inline void float8_decode_tile(const Float8Linear& job, int64_t column, int64_t columns, int64_t at,
                               Float8Tile<Lanes>& tile) {
  constexpr int64_t kStep = 2 * Lanes::kWidth;
  tile.at = at;
  tile.count = job.k - at < kFloat8Tile ? job.k - at : kFloat8Tile;
  tile.group = job.group == kFloat8Block ? kFloat8Block : kFloat8Tile;
  for (int c = 0; c < kFloat8TileColumns; ++c) {
    const int64_t source = column + (c < columns ? c : columns - 1);
    const uint8_t* weight = job.weight + source * job.weight_stride + at;
    typename Lanes::Vector pair[2];
    for (int64_t i = 0; i < tile.count; i += kStep) {
      __builtin_prefetch(weight + i + kAhead, 0, 2);
      if (i + kStep <= tile.count) {
        Lanes::decode(weight + i, pair);
      } else {
        Lanes::decode(weight + i, tile.count - i, pair);
      }
      Lanes::store(tile.values[c] + i, pair[0]);
      Lanes::store(tile.values[c] + i + Lanes::kWidth, pair[1]);
    }
    const bool nan = !Lanes::kDecodesNan && Lanes::has_nan(weight, tile.count);
    const float* scales = job.weight_scale + source * job.groups + at / job.group;
    for (int64_t g = 0; g * tile.group < tile.count; ++g) {
      tile.scales[g][c] = nan ? __builtin_nanf("") : scales[g];
    }
  }
}

/// Adds the products of `Rows` rows of x with a tile to `totals`.
template <class Lanes, int Rows>
inline void float8_tile_rows(const Float8Linear& job, const Float8Tile<Lanes>& tile, int64_t row,
                             float (*totals)[kFloat8TileColumns]) {
  constexpr int64_t kStep = 2 * Lanes::kWidth;
  using Sum = typename Lanes::Sum;
  const typename Lanes::Value* x[Rows];
  for (int r = 0; r < Rows; ++r) x[r] = float8_x<Lanes>(job, row + r) + tile.at;
  const float* x_scale = job.x_scale + row * job.groups + tile.at / job.group;
  Sum scaled[Rows][kFloat8TileColumns] = {};
  for (int64_t from = 0, g = 0; from < tile.count; from += tile.group, ++g) {
    const int64_t left = tile.count - from;
    const int64_t steps = ((left < tile.group ? left : tile.group) + kStep - 1) / kStep;
    Sum sums[Rows][kFloat8TileColumns] = {};
    for (int64_t i = from; i < from + steps * kStep; i += Lanes::kWidth) {
      typename Lanes::Vector values[Rows];
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) values[r] = Lanes::load(x[r] + i);
#pragma GCC unroll 4
      for (int c = 0; c < kFloat8TileColumns; ++c) {
        const typename Lanes::Vector weight = Lanes::load(tile.values[c] + i);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) sums[r][c] = Lanes::add(sums[r][c], values[r], weight);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kFloat8TileColumns; ++c) {
        scaled[r][c] = Lanes::scaled(scaled[r][c], sums[r][c],
                                     x_scale[r * job.groups + g] * tile.scales[g][c]);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    float four[kFloat8TileColumns];
    Lanes::totals(scaled[r], four);
    for (int c = 0; c < kFloat8TileColumns; ++c) totals[r][c] += four[c];
  }
}

/// All rows of x with up to kFloat8TileColumns columns from `column` on.
template <class Lanes, int Rows>
inline void float8_tile_columns(const Float8Linear& job, int64_t column, int64_t columns) {
  Float8Tile<Lanes> tile;
  float totals[kFloat8Rows][kFloat8TileColumns] = {};
  for (int64_t at = 0; at < job.k; at += kFloat8Tile) {
    float8_decode_tile(job, column, columns, at, tile);
    int64_t row = 0;
    for (; row + Rows <= job.rows; row += Rows) {
      float8_tile_rows<Lanes, Rows>(job, tile, row, totals + row);
    }
    for (; row < job.rows; ++row) float8_tile_rows<Lanes, 1>(job, tile, row, totals + row);
  }
  for (int64_t row = 0; row < job.rows; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      float8_put<Lanes>(job, row, column + c, totals[row][c]);
    }
  }
}

template <class Lanes>
inline void float8_multiply(const Float8Linear& job, int64_t begin, int64_t end) {
  if (job.rows == 1) return float8_streams<Lanes, 1>(job, begin, end);
  if (job.rows == 2) return float8_streams<Lanes, 2>(job, begin, end);
  if (job.rows == 3) return float8_streams<Lanes, 3>(job, begin, end);
  if (job.rows >= kTurn && job.rows <= 2 * kTurn) {
    return float8_streams<Lanes, kTurn>(job, begin, end);
  }
  for (int64_t column = begin; job.rows > 0 && column < end; column += kFloat8TileColumns) {
    const int64_t left = end - column;
    const int64_t columns = left < kFloat8TileColumns ? left : kFloat8TileColumns;
    // With scales in every block, sums take twice the registers.
    if (job.group == kFloat8Block) {
      float8_tile_columns<Lanes, Lanes::kTileRows / 2>(job, column, columns);
    } else {
      float8_tile_columns<Lanes, Lanes::kTileRows>(job, column, columns);
    }
  }
}

template <class Lanes>
inline void float8_spread_row(const uint8_t* values, int64_t k, void* row) {
  constexpr int64_t kStep = 2 * Lanes::kWidth;
  auto* out = static_cast<typename Lanes::Value*>(row);
  for (int64_t i = 0; i < k; i += kStep) {
    typename Lanes::Vector pair[2];
    if (i + kStep <= k) {
      Lanes::decode(values + i, pair);
    } else {
      Lanes::decode(values + i, k - i, pair);
    }
    Lanes::store(out + i, Lanes::spread(pair[0]));
    Lanes::store(out + i + Lanes::kWidth, Lanes::spread(pair[1]));
  }
  // Whatever it meets becomes NaN.
  if constexpr (!Lanes::kDecodesNan) {
    if (Lanes::has_nan(values, k)) out[0] = __builtin_nanf("");
  }
}

}  // namespace aegis::kernels
