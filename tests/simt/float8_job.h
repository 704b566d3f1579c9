// A random job of float8_linear with many rows, and how far a result may be from it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/float8_linear.h"

namespace aegis::simt {

struct Float8Job {
  std::vector<uint8_t> x, weight;
  std::vector<float> x_scale, weight_scale;
  kernels::Float8Linear job;

  /// `gap` bytes lie between rows of the weight, and are NaN.
  Float8Job(int64_t rows, int64_t k, int64_t n, int64_t gap, bool blocks) {
    std::mt19937 random(static_cast<unsigned>(rows + k + n));
    const int64_t stride = k + gap, group = blocks ? kernels::kFloat8Block : k;
    const int64_t groups = (k + group - 1) / group;
    const auto code = [&] { return static_cast<uint8_t>(random() % 0x70 | (random() & 0x80)); };
    x.resize(rows * k);
    weight.assign(n * stride, 0x7f);
    for (uint8_t& value : x) value = code();
    for (int64_t i = 0; i < n * k; ++i) weight[i / k * stride + i % k] = code();
    for (int64_t i = 0; i < rows * groups; ++i) x_scale.push_back(std::ldexp(1.25f, random() % 5));
    for (int64_t i = 0; i < n * groups; ++i) {
      weight_scale.push_back(std::ldexp(1.125f, random() % 5));
    }
    job = {x.data(),
           x_scale.data(),
           weight.data(),
           stride,
           weight_scale.data(),
           nullptr,
           nullptr,
           kernels::Float8Result::float32,
           rows,
           k,
           n,
           group,
           groups};
  }
  Float8Job(const Float8Job&) = delete;

  void expect_product(const std::vector<float>& got) const {
    const auto [rows, k, n] = std::array{job.rows, job.k, job.n};
    for (int64_t i = 0; i < rows * n; ++i) {
      double want = 0, size = 0;
      for (int64_t j = 0; j < k; ++j) {
        const double product = double{kernels::e4m3_to_float(x[i / n * k + j])} *
                               kernels::e4m3_to_float(weight[i % n * job.weight_stride + j]) *
                               x_scale[i / n * job.groups + j / job.group] *
                               weight_scale[i % n * job.groups + j / job.group];
        want += product;
        size += std::abs(product);
      }
      ASSERT_LE(std::abs(got[i] - want), (160 + static_cast<double>(k) / 128) * 0x1p-24 * size)
          << rows << " x " << k << " x " << n << ", element " << i;
    }
  }
};

}  // namespace aegis::simt
