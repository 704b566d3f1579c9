#include "kernels/cuda/float8_linear.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "kernels/cuda/float8_quantize.h"
#include "kernels/cuda/float8_tiles.h"
#include "ops/cuda/stream.h"
#include "ops/float8_linear.h"
#include "ops/scaled_mm.h"

namespace aegis::ops {
namespace {

/// The kernels of tiles have not yet run on a GPU, so that they have to be asked for.
bool tiles_wanted() {
  static const bool wanted = [] {
    const char* value = std::getenv("AEGIS_FLOAT8_TILES");
    return value && std::string_view(value) == "1";
  }();
  return wanted;
}

/// Who multiplies.
enum class Way { gemv, torch, tiles };

/// For more rows than the GEMV takes at once, on a GPU of compute capability `sm`.
Way choose(const Float8Arguments& arguments, const kernels::Float8Linear& job, int sm) {
  if (tiles_wanted() && kernels::cuda::float8_tiles_built(sm) &&
      kernels::cuda::float8_tiles_take(job)) {
    return Way::tiles;
  }
  const Tensor& weight = arguments.weight;
  const bool torch_takes = arguments.groups.count == 1 && weight.is_contiguous() &&
                           weight.size(0) % 16 == 0 && weight.size(1) % 16 == 0 &&
                           weight.size(1) > 0 && sm >= 89 &&
                           reinterpret_cast<uintptr_t>(weight.const_data_ptr()) % 16 == 0;
  return torch_takes ? Way::torch : Way::gemv;
}

Tensor float8_linear(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                     const std::optional<Tensor>& bias) {
  const Float8Arguments arguments = check_float8_linear(x, weight, weight_scale, bias);
  const int32_t device = x.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  CUstream_st* const stream = current_stream(device);
  const int64_t rows = rows_of(x), k = weight.size(1), n = weight.size(0);
  Tensor out = torch::stable::new_empty(x, shape_with_last(x, n));
  if (rows == 0 || n == 0) return out;

  const Float8Quantized quantized = float8_quantized(x, arguments.groups);
  const float* scales = quantized.scales.const_data_ptr<float>();
  const kernels::Float8Linear whole =
      arguments.job(quantized.values.const_data_ptr(), scales, rows, out.mutable_data_ptr());
  const bool many = rows > kernels::cuda::kFloat8GemvRows;
  const int sm = many ? kernels::cuda::compute_capability(device) : 0;
  const Way way = many ? choose(arguments, whole, sm) : Way::gemv;
  const int64_t stride = kernels::cuda::float8_spread_stride(k);
  const Tensor spread =
      torch::stable::new_empty(x, {way == Way::gemv ? rows * stride : 0}, ScalarType::BFloat16);
  auto* const inputs =
      way == Way::gemv ? static_cast<kernels::BFloat16*>(spread.mutable_data_ptr()) : nullptr;
  with_float_type(x.scalar_type(), "x", [&]<class Element>(std::type_identity<Element>) {
    kernels::cuda::launch_float8_quantize<Element>(quantized.job<Element>(), inputs, stream);
  });
  if (way == Way::tiles) {
    kernels::cuda::launch_float8_tiles(whole, sm, stream);
    return out;
  }
  if (way == Way::torch) {
    const Tensor products = unscaled_mm(quantized.values, rows, weight);
    kernels::cuda::launch_float8_rescale(whole, products.const_data_ptr<float>(), stream);
    return out;
  }
  char* const results = static_cast<char*>(out.mutable_data_ptr());
  const auto row_bytes = static_cast<int64_t>(out.element_size()) * n;
  for (int64_t row = 0; row < rows; row += kernels::cuda::kFloat8GemvRows) {
    kernels::cuda::launch_float8_linear(
        arguments.job(inputs + row * stride, scales + row * arguments.groups.count,
                      std::min(kernels::cuda::kFloat8GemvRows, rows - row),
                      results + row * row_bytes),
        stream);
  }
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("float8_linear", TORCH_BOX(&float8_linear));
  m.impl("float8_linear.inference", TORCH_BOX(&float8_linear));
}

}  // namespace aegis::ops
