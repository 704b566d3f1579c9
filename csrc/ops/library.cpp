// Every operator of torch.ops.aegis, one line each.
#include "ops/abi.h"

STABLE_TORCH_LIBRARY(aegis, m) {
  // clang-format off
  m.def("extract_batch(Tensor arena, Tensor offsets, SymInt block_size) -> (Tensor inputs, Tensor targets)");
  m.def("extract_batch.out(Tensor arena, Tensor offsets, *, Tensor(a!) inputs, Tensor(b!) targets) -> ()");
  // clang-format on
}
