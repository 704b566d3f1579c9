// What the CPU and CUDA sides of to_bfloat16_rne have in common: the checks, how its tensors are
// walked over, and the overloads.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/to_bfloat16_rne.h"
#include "ops/abi.h"

namespace aegis::ops {

/// A dimension of both tensors, with strides in elements.
struct SharedDim {
  int64_t size;
  int64_t x_stride;
  int64_t out_stride;
};

/// The dimensions of more than one element, from the widest steps of `out` to the narrowest.
inline std::vector<SharedDim> shared_dims(const Tensor& x, const Tensor& out) {
  std::vector<SharedDim> dims;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) != 1) dims.push_back({x.size(d), x.stride(d), out.stride(d)});
  }
  std::stable_sort(dims.begin(), dims.end(), [](const SharedDim& a, const SharedDim& b) {
    return a.out_stride > b.out_stride;
  });
  return dims;
}

/// The kernel's view of checked arguments that have elements; what lies densely is one dimension.
inline kernels::ToBfloat16Rne bfloat16_job(const Tensor& x, const Tensor& out) {
  kernels::ToBfloat16Rne job{};
  job.x = x.const_data_ptr<float>();
  job.out = static_cast<uint16_t*>(out.mutable_data_ptr());
  job.count = x.numel();
  if (job.count == 0) return job;
  std::vector<SharedDim> merged;
  for (const SharedDim& dim : shared_dims(x, out)) {
    SharedDim* wider = merged.empty() ? nullptr : &merged.back();
    if (wider && wider->x_stride == dim.size * dim.x_stride &&
        wider->out_stride == dim.size * dim.out_stride) {
      *wider = {wider->size * dim.size, dim.x_stride, dim.out_stride};
    } else {
      merged.push_back(dim);
    }
  }
  if (merged.empty()) merged.push_back({1, 1, 1});
  for (const SharedDim& dim : merged) {
    job.sizes[job.dims] = dim.size;
    job.x_strides[job.dims] = dim.x_stride;
    job.out_strides[job.dims] = dim.out_stride;
    ++job.dims;
  }
  return job;
}

inline void check_to_bfloat16(const Tensor& x) { check_dtype(x, ScalarType::Float, "x"); }

/// Checks what to_bfloat16_rne.out writes.
inline void check_to_bfloat16_out(const Tensor& x, const Tensor& out) {
  check_to_bfloat16(x);
  check_dtype(out, ScalarType::BFloat16, "out");
  check_same_device(out, x, "out", "x");
  const bool same =
      x.dim() == out.dim() && std::equal(x.sizes().begin(), x.sizes().end(), out.sizes().begin());
  check<std::invalid_argument>(same, "out: expected shape ", shape_of(x), ", that of x, got ",
                               shape_of(out));
  if (x.numel() == 0) return;
  const std::vector<SharedDim> dims = shared_dims(x, out);
  int64_t narrower = 0;  // from the first to the last element of the dimensions after this one
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    check<std::invalid_argument>(dim->out_stride > narrower,
                                 "out: expected elements apart from each other, got strides ",
                                 list_of(out.strides()));
    narrower += (dim->size - 1) * dim->out_stride;
  }
  check_disjoint(extent_of(out, sizeof(uint16_t)), extent_of(x, sizeof(float)), "out", "x");
}

// The overloads a device registers. `run(x, out)` is its own and fills `out`.

template <auto run>
Tensor to_bfloat16_rne(const Tensor& x) {
  check_to_bfloat16(x);
  Tensor out = torch::stable::new_empty(x, x.sizes(), ScalarType::BFloat16);
  run(x, out);
  return out;
}

template <auto run>
void to_bfloat16_rne_out(const Tensor& x, const Tensor& out) {
  check_to_bfloat16_out(x, out);
  run(x, out);
}

}  // namespace aegis::ops
