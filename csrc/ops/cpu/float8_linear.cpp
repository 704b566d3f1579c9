#include "ops/float8_linear.h"

#include <algorithm>
#include <bit>

#include "ops/cpu/float8_rows.h"

namespace aegis::ops {
namespace {

/// Bytes of weights, or as much work, that are worth waking a thread for.
constexpr int64_t kThreadBytes = 128 << 10;
/// Rows of x that are quantised at a time: bounds the workspace.
constexpr int64_t kBatch = 8 * kernels::kFloat8Rows;

bool is_finite(float value) {  // without a branch or a call, so that a loop of it is vectorised
  return (std::bit_cast<uint32_t>(value) & 0x7f800000) != 0x7f800000;
}

void check_scales(const Tensor& scales) {
  const float* scale = scales.const_data_ptr<float>();
  const int64_t count = scales.numel();
  int32_t bad = 0;
  for (int64_t i = 0; i < count; ++i) bad |= !is_finite(scale[i]);
  for (int64_t i = 0; bad && i < count; ++i) {
    check<std::invalid_argument>(is_finite(scale[i]), "weight_scale[", i / scales.size(1), ", ",
                                 i % scales.size(1), "]: expected a finite number, got ", scale[i]);
  }
}

/// What a batch of x becomes before it meets the weights.
struct Workspace {
  Tensor values, scales, spread;

  Workspace(const Tensor& like, int64_t rows, int64_t k, int64_t groups)
      : values(torch::stable::new_empty(like, {rows * k}, ScalarType::Byte)),
        scales(torch::stable::new_empty(like, {rows * groups}, ScalarType::Float)),
        spread(torch::stable::new_empty(like, {rows * kernels::float8_row_bytes(k)},
                                        ScalarType::Byte)) {}
};

template <class Element>
void run(const Float8Arguments& arguments, const Tensor& x, int64_t rows, const Tensor& out) {
  const int64_t k = arguments.weight.size(1), n = arguments.weight.size(0);
  const int64_t row_bytes = kernels::float8_row_bytes(k);
  const Workspace workspace(x, std::min(rows, kBatch), k, arguments.groups.count);
  const auto* from = static_cast<const Element*>(x.const_data_ptr());
  auto* results = static_cast<Element*>(out.mutable_data_ptr());
  auto* values = static_cast<uint8_t*>(workspace.values.mutable_data_ptr());
  auto* scales = static_cast<float*>(workspace.scales.mutable_data_ptr());
  auto* spread = static_cast<char*>(workspace.spread.mutable_data_ptr());
  const kernels::Float8LinearKernel kernel = kernels::float8_linear_kernel();
  for (int64_t first = 0; first < rows; first += kBatch) {
    const int64_t batch = std::min(kBatch, rows - first);
    quantize_rows<Element>(
        {from + first * k, values, scales, batch, k, arguments.groups.size, arguments.groups.count},
        [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            kernel.spread(values + row * k, k, spread + row * row_bytes);
          }
        });
    const int64_t column_bytes = std::max(k * std::min(batch, kernels::kFloat8Rows), int64_t{1});
    torch::stable::parallel_for(
        0, n, kThreadBytes / column_bytes + 1, [&](int64_t begin, int64_t end) {
          for (int64_t row = 0; row < batch; row += kernels::kFloat8Rows) {
            kernel.multiply(
                arguments.job(spread + row * row_bytes, scales + row * arguments.groups.count,
                              std::min(kernels::kFloat8Rows, batch - row),
                              results + (first + row) * n),
                begin, end);
          }
        });
  }
}

Tensor float8_linear(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                     const std::optional<Tensor>& bias) {
  const Float8Arguments arguments = check_float8_linear(x, weight, weight_scale, bias);
  check_scales(weight_scale);
  Tensor out = torch::stable::new_empty(x, shape_with_last(x, weight.size(0)));
  if (out.numel() == 0) return out;
  const Tensor packed = as_contiguous(x);
  with_float_type(x.scalar_type(), "x", [&]<class Element>(std::type_identity<Element>) {
    run<Element>(arguments, packed, rows_of(x), out);
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("float8_linear", TORCH_BOX(&float8_linear));
  m.impl("float8_linear.inference", TORCH_BOX(&float8_linear));
}

}  // namespace aegis::ops
