// The CUDA kernels and their launcher: with int8 activations the bits of the scalar oracle, exact
// within the contract's bound.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/ternary_linear.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::kernels {
namespace scalar {
template <class Element>
void ternary_prepare(const TernaryLinear<Element>&, int64_t, int64_t);
template <class Element>
bool ternary_columns(const TernaryLinear<Element>&, int64_t, int64_t);
}  // namespace scalar

namespace {

using simt::DeviceBuffer;

class TernaryLinearTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(TernaryLinearTest);

template <class Element>
struct Layer {
  int64_t rows, k, n;
  std::vector<Element> x, bias;
  std::vector<uint32_t> packed;
  std::vector<float> scale;
  unsigned blocks = 0;  // 0: as many as the launcher has

  Layer(int64_t rows, int64_t k, int64_t n, bool one_scale = false)
      : rows(rows), k(k), n(n), packed(n * trit_words(k)), scale(one_scale ? 1 : n) {
    std::mt19937 random(static_cast<unsigned>(rows + 9 * k + 1000 * n));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * k; ++i) x.push_back(from_float<Element>(normal(random)));
    for (int64_t i = 0; i < n; ++i) bias.push_back(from_float<Element>(normal(random)));
    for (float& one : scale) one = std::abs(normal(random));
    for (int64_t i = 0; i < n * k; ++i) {
      word(i / k, i % k) |= static_cast<uint32_t>(random() % 3) << 2 * (i % k % 16);
    }
  }

  uint32_t& word(int64_t column, int64_t i) { return packed[column * trit_words(k) + i / 16]; }
  double trit(int64_t column, int64_t i) {
    const uint32_t code = word(column, i) >> 2 * (i % 16) & 3;
    return code == 1 ? 1 : code == 2 ? -1 : 0;
  }

  std::vector<Element> on_device(bool exact, bool with_bias, size_t shift = 0) {
    DeviceBuffer<Element> xs("x", x, shift), biases("bias", bias, shift),
        out("out", static_cast<size_t>(rows * n), shift);
    DeviceBuffer<uint32_t> words("packed", packed, shift);
    DeviceBuffer<float> column_scales("scale", scale, shift);
    const int64_t prepared = exact ? 0 : rows;
    DeviceBuffer<int8_t> values("values",
                                static_cast<size_t>(prepared * cuda::ternary_value_bytes(k)));
    DeviceBuffer<float> scales("scales", static_cast<size_t>(prepared));
    DeviceBuffer<int32_t> sums("sums", static_cast<size_t>(prepared));
    launch({xs.data(), words.data(), column_scales.data(), scale.size() == 1 ? 0 : 1,
            with_bias ? biases.data() : nullptr, out.data(), rows, k, n, values.data(),
            scales.data(), sums.data(), nullptr},
           exact);
    return out.values();
  }

  void launch(const TernaryLinear<Element>& job, bool exact) {
    if (blocks == 0) return cuda::launch_ternary_linear(job, exact, nullptr);
    const auto queue = [&](auto kernel, dim3 grid) {
      cuda::launch("ternary_linear", kernel, grid, cuda::kTernaryThreads, 0, nullptr, job);
    };
    if (exact) return queue(cuda::ternary_linear_exact<Element, 2>, dim3(blocks, blocks));
    queue(cuda::ternary_prepare<Element>, static_cast<unsigned>(rows));
    if (rows > cuda::kTernaryFewRows) return queue(cuda::ternary_tiles<Element>, blocks);
    queue(cuda::ternary_linear<Element, 2>, dim3(blocks, blocks));
  }

  std::vector<Element> by_oracle(bool with_bias) {
    std::vector<Element> out(rows * n);
    std::vector<int8_t> values(rows * ternary_padded(k));
    std::vector<float> scales(rows);
    std::vector<int32_t> sums(rows);
    const TernaryLinear<Element> job{x.data(),
                                     packed.data(),
                                     scale.data(),
                                     scale.size() == 1 ? 0 : 1,
                                     with_bias ? bias.data() : nullptr,
                                     out.data(),
                                     rows,
                                     k,
                                     n,
                                     values.data(),
                                     scales.data(),
                                     sums.data(),
                                     nullptr};
    scalar::ternary_prepare(job, 0, rows);
    scalar::ternary_columns(job, 0, n);
    return out;
  }
};

template <class Element>
void expect_the_oracles_bits(int64_t rows, int64_t k, int64_t n, size_t shift = 0) {
  Layer<Element> layer(rows, k, n, k % 2);
  const bool with_bias = (k + n) % 2;
  const auto got = layer.on_device(false, with_bias, shift), want = layer.by_oracle(with_bias);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(Element)), 0)
        << rows << " x " << k << " x " << n << ", element " << i << ": " << to_float(got[i])
        << ", not " << to_float(want[i]);
  }
}

TEST_P(TernaryLinearTest, SameBitsAsTheOracle_case46) {
  for (int64_t rows : {0, 1, 2, 3, 5, 9}) expect_the_oracles_bits<float>(rows, 70, 5);
  for (int64_t k : {0, 1, 15, 16, 17, 300, 700}) expect_the_oracles_bits<float>(2, k, 3);
  for (int64_t n : {1, 4, 9}) expect_the_oracles_bits<float>(1, 40, n, 1);
  expect_the_oracles_bits<Half>(3, 77, 4);
  expect_the_oracles_bits<BFloat16>(3, 77, 4, 1);
}

TEST_P(TernaryLinearTest, TilesOfManyRowsHaveTheOraclesBits) {
  for (int64_t k : {0, 1, 128, 300}) expect_the_oracles_bits<float>(17, k, 3);
  expect_the_oracles_bits<float>(65, 40, 66, 1);
  expect_the_oracles_bits<Half>(20, 77, 4);
  expect_the_oracles_bits<BFloat16>(20, 77, 4, 1);
}

TEST_P(TernaryLinearTest, MoreRowsColumnsAndTilesThanBlocks) {
  for (auto [rows, k] : {std::array<int64_t, 2>{5, 70}, {65, 70}, {65, 0}}) {
    Layer<float> layer(rows, k, 66);
    layer.blocks = 1;
    EXPECT_EQ(layer.on_device(false, true), layer.by_oracle(true)) << rows << " by " << k;
  }
  Layer<float> layer(5, 70, 9);
  const auto want = layer.on_device(true, true);
  layer.blocks = 1;
  EXPECT_EQ(layer.on_device(true, true), want);
}

TEST_P(TernaryLinearTest, LargestSumsDoNotOverflow_case44) {
  for (auto [rows, k] : {std::array<int64_t, 2>{1, 8192}, {17, 1024}}) {
    Layer<float> layer(rows, k, 1);
    layer.x.assign(rows * k, 127);
    layer.packed.assign(k / 16, kLowBits);
    layer.scale = {1};
    EXPECT_EQ(layer.on_device(false, false), std::vector<float>(rows, static_cast<float>(127 * k)));
  }
}

TEST_P(TernaryLinearTest, RowsThatAreNotNumbersAreNanAndSmallOnesKeepTheirPrecision) {
  const float values[] = {std::numeric_limits<float>::quiet_NaN(), 0, 0x1p-149f, 0x1p-127f};
  for (int64_t at = 0; at < 4; ++at) {
    Layer<float> layer(3, 50, 2);
    for (int64_t i = 0; i < 50; ++i) layer.x[50 + i] = i == 40 || at ? values[at] : 1.0f;
    const auto got = layer.on_device(false, true), want = layer.by_oracle(true);
    for (int64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(std::isnan(got[i]), at == 0 && i / 2 == 1);
      EXPECT_TRUE(std::isnan(want[i]) || got[i] == want[i]) << at << ", element " << i;
    }
  }
}

TEST_P(TernaryLinearTest, ACodeOf11MakesItsColumnNan) {
  for (const bool exact : {false, true}) {
    for (const int64_t at : {0, 31, 530}) {
      for (const int64_t rows : {2, 17}) {
        if (rows > 2 && (exact || at == 0)) continue;  // these go no other way than two rows
        Layer<float> layer(rows, 531, 3);
        layer.word(1, at) |= 3u << 2 * (at % 16);
        const auto got = layer.on_device(exact, false);
        for (int64_t i = 0; i < 3 * rows; ++i) EXPECT_EQ(std::isnan(got[i]), i % 3 == 1) << i;
      }
    }
  }
}

/// Of every quarter of a tile, and of the tile behind.
TEST_P(TernaryLinearTest, ACodeOf11MakesNoOtherColumnOfTilesNan) {
  Layer<float> layer(17, 40, 66);
  for (const int64_t column : {5, 21, 37, 63, 65}) layer.word(column, 33) |= 3u << 2;
  const auto got = layer.on_device(false, false);
  for (int64_t i = 0; i < 17 * 66; ++i) {
    const int64_t column = i % 66;
    const bool bad = column == 5 || column == 21 || column == 37 || column == 63 || column == 65;
    EXPECT_EQ(std::isnan(got[i]), bad) << i;
  }
}

TEST_P(TernaryLinearTest, WhatStandsPastKMakesItsColumnNan) {
  for (const bool exact : {false, true}) {
    for (const auto [k, at] : {std::array<int64_t, 2>{5, 5}, {5, 15}, {531, 540}}) {
      for (const int64_t rows : {2, 17}) {
        Layer<float> layer(rows, k, 3);
        layer.word(1, at) |= 1u << 2 * (at % 16);
        const auto got = layer.on_device(exact, false);
        for (int64_t i = 0; i < 3 * rows; ++i) EXPECT_EQ(std::isnan(got[i]), i % 3 == 1) << i;
      }
    }
  }
}

template <class Element>
void keeps_the_exact_bound(double relative) {
  for (int64_t rows : {1, 2, 3, 6}) {
    Layer<Element> layer(rows, 100, 5);
    const auto got = layer.on_device(true, true);
    for (int64_t i = 0; i < rows * 5; ++i) {
      const int64_t row = i / 5, column = i % 5;
      double want = to_float(layer.bias[column]), size = std::abs(want);
      for (int64_t j = 0; j < 100; ++j) {
        const double product =
            to_float(layer.x[row * 100 + j]) * layer.scale[column] * layer.trit(column, j);
        want += product;
        size += std::abs(product);
      }
      const double error = 102 * 0x1p-23 * size;
      EXPECT_LE(std::abs(to_float(got[i]) - want),
                error + relative * (std::abs(want) + error) + 0x1p-25)
          << rows << " rows, element " << i;
    }
  }
}

TEST_P(TernaryLinearTest, ExactKeepsItsBound) {
  keeps_the_exact_bound<float>(0);
  keeps_the_exact_bound<Half>(0x1p-11);
  keeps_the_exact_bound<BFloat16>(0x1p-8);
}

}  // namespace
}  // namespace aegis::kernels
