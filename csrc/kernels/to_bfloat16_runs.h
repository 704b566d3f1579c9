// The walk over runs of elements shared by the CPU versions of to_bfloat16_rne.
#pragma once

#include <cstdint>

#include "kernels/to_bfloat16_rne.h"

namespace aegis::kernels {

/// to_bfloat16_rne by way of `Convert`, which has
///   static void dense(x, out, count)  and
///   static uint16_t one(value).
/// `Convert` is a type in an anonymous namespace of its ISA's file; that gives every instantiation
/// internal linkage, so the linker cannot swap one ISA's copy for another's.
template <class Convert>
struct ToBfloat16Runs {
  static void run(const float* x, int64_t x_stride, uint16_t* out, int64_t out_stride,
                  int64_t count) {
    if (x_stride == 1 && out_stride == 1) return Convert::dense(x, out, count);
    for (int64_t i = 0; i < count; ++i) out[i * out_stride] = Convert::one(x[i * x_stride]);
  }

  static void convert(const ToBfloat16Rne& job, int64_t begin, int64_t end) {
    const int last = job.dims - 1;
    int64_t at[ToBfloat16Rne::kMaxDims];
    const float* x = job.x;
    uint16_t* out = job.out;
    int64_t rest = begin;
    for (int d = last; d >= 0; --d) {
      at[d] = rest % job.sizes[d];
      rest /= job.sizes[d];
      x += at[d] * job.x_strides[d];
      out += at[d] * job.out_strides[d];
    }
    while (begin < end) {
      const int64_t row = job.sizes[last] - at[last], left = end - begin;
      const int64_t count = row < left ? row : left;
      run(x, job.x_strides[last], out, job.out_strides[last], count);
      begin += count;
      if (begin == end) return;
      x -= at[last] * job.x_strides[last];
      out -= at[last] * job.out_strides[last];
      at[last] = 0;
      for (int d = last - 1; d >= 0; --d) {
        x += job.x_strides[d];
        out += job.out_strides[d];
        if (++at[d] < job.sizes[d]) break;
        x -= job.sizes[d] * job.x_strides[d];
        out -= job.sizes[d] * job.out_strides[d];
        at[d] = 0;
      }
    }
  }
};

}  // namespace aegis::kernels
