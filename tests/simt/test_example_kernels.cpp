// Kernels of realistic shape against loops: what the executor has to carry, and what
// tools/simt_mutations.py breaks.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "simt/device_buffer.h"
#include "simt/every_schedule.h"
#include "simt/kernels/argmax.cuh"
#include "simt/kernels/compact.cuh"
#include "simt/kernels/gemv.cuh"
#include "simt/kernels/histogram.cuh"
#include "simt/kernels/transpose.cuh"

namespace aegis::simt::examples {
namespace {

class ExampleTest : public EverySchedule {
 protected:
  std::mt19937 random_{11};
};
AEGIS_EVERY_SCHEDULE(ExampleTest);

TEST_P(ExampleTest, ArgmaxFindsTheFirstLargest) {
  for (int columns : {1, 2, 31, 32, 33, 127, 128, 129, 700}) {
    for (int64_t rows : {1, 5}) {
      std::vector<float> values(rows * columns);
      for (float& value : values) value = static_cast<float>(random_() % 50) - 60;  // ties, all < 0
      std::vector<int> want;
      for (int64_t row = 0; row < rows; ++row) {
        const auto begin = values.begin() + row * columns;
        want.push_back(static_cast<int>(std::max_element(begin, begin + columns) - begin));
      }
      DeviceBuffer<float> in("values", values);
      DeviceBuffer<int> out("indices", rows);
      launch({2, 128}, argmax<128>, in.data(), rows, columns, out.data());
      ASSERT_EQ(out.values(), want) << columns << " columns";
    }
  }
}

TEST_P(ExampleTest, CompactKeepsTheOrder) {
  for (int count : {0, 1, 31, 64, 127, 128, 129, 1000}) {
    for (unsigned keep_percent : {0u, 50u, 100u}) {
      std::vector<int> values(count), want;
      for (int& value : values) {
        value = static_cast<int>(random_() % 1000) - (random_() % 100 < keep_percent ? 0 : 1000);
        if (value >= 0) want.push_back(value);
      }
      DeviceBuffer<int> in("values", values), kept("kept", want.size());
      DeviceBuffer<int64_t> kept_count("kept_count", 1);
      launch({1, 128}, compact<128>, in.data(), count, kept.data(), kept_count.data());
      ASSERT_EQ(kept_count.values()[0], static_cast<int64_t>(want.size()));
      ASSERT_EQ(kept.values(), want) << count << " values";
    }
  }
}

template <class T>
void compare_transpose(int rows, int columns) {
  std::vector<T> values(rows * columns), want(rows * columns);
  for (int i = 0; i < rows * columns; ++i) {
    values[i] = static_cast<T>(i);
    want[i % columns * rows + i / columns] = static_cast<T>(i);
  }
  DeviceBuffer<T> in("in", values), out("out", values.size());
  const dim3 grid((columns + kTile - 1) / kTile, (rows + kTile - 1) / kTile);
  launch({grid, dim3(kTile, kTileRows), transpose_shared_bytes<T>()}, transpose<T>, in.data(), rows,
         columns, out.data());
  ASSERT_EQ(out.values(), want) << rows << " x " << columns;
}

TEST_P(ExampleTest, TransposeOfAnyShape) {
  for (int rows : {1, 31, 32, 65}) {
    for (int columns : {1, 32, 33, 64}) {
      compare_transpose<float>(rows, columns);
      compare_transpose<uint8_t>(rows, columns);
    }
  }
}

TEST_P(ExampleTest, GemvWithAndWithoutAlignment) {
  for (int columns : {1, 15, 16, 48, 512, 1040, 1043}) {
    for (int rows : {1, 7}) {
      for (size_t shift : {0, 1}) {
        std::vector<int8_t> weights(rows * columns), vector(columns);
        for (int8_t& weight : weights) weight = static_cast<int8_t>(random_());
        for (int8_t& value : vector) value = static_cast<int8_t>(random_());
        std::vector<int> want(rows);
        for (int i = 0; i < rows * columns; ++i)
          want[i / columns] += weights[i] * vector[i % columns];
        DeviceBuffer<int8_t> matrix("weights", weights, shift), input("vector", vector);
        DeviceBuffer<int> out("out", rows);
        launch({dim3((rows + 3) / 4), 128}, gemv, matrix.data(), input.data(), rows, columns,
               out.data());
        ASSERT_EQ(out.values(), want) << columns << " columns, shift " << shift;
      }
    }
  }
}

TEST_P(ExampleTest, HistogramCountsAcrossBlocks) {
  for (int64_t count : {0, 1, 1000}) {
    const int bin_count = 77;
    std::vector<uint16_t> tokens(count);
    std::vector<unsigned> want(bin_count);
    for (uint16_t& token : tokens) {
      token = static_cast<uint16_t>(random_() % (bin_count + 5));
      if (token < bin_count) ++want[token];
    }
    DeviceBuffer<uint16_t> in("tokens", tokens);
    DeviceBuffer<unsigned> bins("bins", std::vector<unsigned>(bin_count));
    launch({3, 64, bin_count * sizeof(unsigned)}, histogram, in.data(), count, bin_count,
           bins.data());
    ASSERT_EQ(bins.values(), want);
  }
}

}  // namespace
}  // namespace aegis::simt::examples
