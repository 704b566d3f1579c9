// The oracle: sums in the order of memory.
#include "kernels/float8_linear.h"

#include <algorithm>

namespace aegis::kernels::scalar {
namespace {

template <class Element>
void multiply(const Float8Linear& job, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end; ++column) {
    const uint8_t* weight = job.weight + column * job.weight_stride;
    for (int64_t row = 0; row < job.rows; ++row) {
      const auto* x = reinterpret_cast<const float*>(static_cast<const char*>(job.x) +
                                                     row * float8_row_bytes(job.k));
      float total = 0;
      for (int64_t at = 0; at < job.k; at += kFloat8Block) {
        float sum = 0;
        for (int64_t i = at; i < std::min(at + kFloat8Block, job.k); ++i) {
          sum += x[i] * e4m3_to_float(weight[i]);
        }
        const int64_t group = at / job.group;
        total += sum * (job.x_scale[row * job.groups + group] *
                        job.weight_scale[column * job.groups + group]);
      }
      if (job.bias) total += to_float(static_cast<const Element*>(job.bias)[column]);
      static_cast<Element*>(job.out)[row * job.n + column] = from_float<Element>(total);
    }
  }
}

}  // namespace

void float8_spread(const uint8_t* values, int64_t k, void* row) {
  for (int64_t i = 0; i < k; ++i) static_cast<float*>(row)[i] = e4m3_to_float(values[i]);
}

void float8_linear(const Float8Linear& job, int64_t begin, int64_t end) {
  if (job.type == Float8Result::float32) multiply<float>(job, begin, end);
  if (job.type == Float8Result::float16) multiply<Half>(job, begin, end);
  if (job.type == Float8Result::bfloat16) multiply<BFloat16>(job, begin, end);
}

}  // namespace aegis::kernels::scalar
