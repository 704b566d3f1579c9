#include "ops/float8_quantize.h"

#include <tuple>

#include "ops/cpu/float8_rows.h"

namespace aegis::ops {
namespace {

std::tuple<Tensor, Tensor> float8_quantize(const Tensor& x, int64_t block) {
  const Float8Quantized result = float8_quantized(x, check_float8_quantize(x, block));
  with_float_type(x.scalar_type(), "x", [&]<class Element>(std::type_identity<Element>) {
    quantize_rows(result.job<Element>(), [](int64_t, int64_t) {});
  });
  return {result.values, result.scales};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) { m.impl("float8_quantize", TORCH_BOX(&float8_quantize)); }

}  // namespace aegis::ops
