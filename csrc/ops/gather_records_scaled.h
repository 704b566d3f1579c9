// What the CPU and CUDA sides of gather_records_scaled have in common: the checks.
#pragma once

#include <type_traits>

#include "kernels/gather_records_scaled.h"
#include "ops/gather_records.h"

namespace aegis::ops {

/// The number that stands for a dtype in the schema.
enum class ScaledType : int64_t { float32 = 0, bfloat16 = 1 };

inline ScalarType scaled_scalar_type(int64_t dtype) {
  check<std::invalid_argument>(dtype == 0 || dtype == 1,
                               "dtype: expected 0 (float32) or 1 (bfloat16), got ", dtype);
  return static_cast<ScaledType>(dtype) == ScaledType::float32 ? ScalarType::Float
                                                               : ScalarType::BFloat16;
}

inline void check_per_channel(const Tensor& t, const Tensor& source, const char* name) {
  check_dtype(t, ScalarType::Float, name);
  check<std::invalid_argument>(t.dim() == 1 && t.size(0) == source.size(1) && t.is_contiguous(),
                               name, ": expected a contiguous tensor of shape [", source.size(1),
                               "], one value for each channel, got shape ", shape_of(t),
                               t.is_contiguous() ? "" : ", not contiguous");
  check_same_device(t, source, name, "source");
}

inline GatherShape check_gather_scaled(const Tensor& source, const Tensor& indices,
                                       const Tensor& scale, const Tensor& bias) {
  check_dtype(source, ScalarType::Byte, "source");
  check<std::invalid_argument>(source.dim() >= 2,
                               "source: expected at least 2 dimensions, rows and channels, got ",
                               shape_of(source));
  check_per_channel(scale, source, "scale");
  check_per_channel(bias, source, "bias");
  return check_gather(source, indices);
}

/// Checks what gather_records_scaled.out writes, and returns its type.
inline ScalarType check_gather_scaled_out(const GatherShape& shape, const Tensor& source,
                                          const Tensor& indices, const Tensor& scale,
                                          const Tensor& bias, const Tensor& out) {
  const ScalarType dtype = out.scalar_type();
  check<std::invalid_argument>(dtype == ScalarType::Float || dtype == ScalarType::BFloat16,
                               "out: expected dtype float32 or bfloat16, got ", name_of(dtype));
  check_gather_out(shape, source, indices, out);
  if (out.numel() > 0) {
    const Extent written = extent_of(out, out.element_size());
    check_disjoint(written, extent_of(scale, sizeof(float)), "out", "scale");
    check_disjoint(written, extent_of(bias, sizeof(float)), "out", "bias");
  }
  return dtype;
}

/// The kernel's view of checked arguments, whose `Out` stands for the dtype of `out`.
template <class Out>
kernels::GatherRecordsScaled<Out> scaled_job(const GatherShape& shape, const Tensor& source,
                                             const Tensor& indices, const Tensor& scale,
                                             const Tensor& bias, const Tensor& out) {
  const int64_t channels = source.size(1);
  return {source.const_data_ptr<uint8_t>(),
          shape.row_stride,
          channels,
          channels == 0 ? 0 : shape.row_bytes / channels,
          scale.const_data_ptr<float>(),
          bias.const_data_ptr<float>(),
          indices.const_data_ptr<int64_t>(),
          shape.batch,
          static_cast<Out*>(out.mutable_data_ptr())};
}

/// Calls `f(std::type_identity<Out>{})` with the type that kernels write for float32 or bfloat16.
template <class F>
void with_scaled_type(ScalarType dtype, F&& f) {
  if (dtype == ScalarType::Float) {
    f(std::type_identity<float>{});
  } else {
    f(std::type_identity<uint16_t>{});
  }
}

}  // namespace aegis::ops
