#include "ops/extract_batch.h"

#include <tuple>

#include "kernels/extract_batch.h"

namespace aegis::ops {
namespace {

/// Reads every offset before anything is written.
void check_offsets(const int64_t* offsets, const ExtractShape& shape) {
  const int64_t room = shape.tokens - shape.block_size;  // offsets are 0 .. room - 1
  for (int64_t i = 0; i < shape.batch; ++i) {
    check<std::out_of_range>(0 <= offsets[i] && offsets[i] < room, "offsets[", i,
                             "]: expected 0 to ", room - 1, ", got ", offsets[i]);
  }
}

template <class Input>
void run(const ExtractShape& shape, const Tensor& arena, const Tensor& offsets,
         const Tensor& inputs, const Tensor& targets) {
  with_token_type(shape.token, [&]<class Token>(std::type_identity<Token>) {
    kernels::extract_batch_kernel<Token, Input>()(
        {static_cast<const Token*>(arena.const_data_ptr()), offsets.const_data_ptr<int64_t>(),
         shape.batch, shape.block_size, inputs.mutable_data_ptr<Input>(),
         targets.mutable_data_ptr<int64_t>()});
  });
}

std::tuple<Tensor, Tensor> extract_batch(const Tensor& arena, const Tensor& offsets,
                                         int64_t block_size) {
  const ExtractShape shape = check_extract(arena, offsets, block_size);
  check_offsets(offsets.const_data_ptr<int64_t>(), shape);
  Tensor inputs = torch::stable::new_empty(offsets, {shape.batch, block_size});
  Tensor targets = torch::stable::new_empty(offsets, {shape.batch, block_size});
  run<int64_t>(shape, arena, offsets, inputs, targets);
  return {inputs, targets};
}

void extract_batch_out(const Tensor& arena, const Tensor& offsets, const Tensor& inputs,
                       const Tensor& targets) {
  check<std::invalid_argument>(inputs.dim() == 2, "inputs: expected a 2-D tensor, got shape ",
                               shape_of(inputs));
  const ExtractShape shape = check_extract(arena, offsets, inputs.size(1));
  check_extract_out(shape, arena, offsets, inputs, targets);
  check_offsets(offsets.const_data_ptr<int64_t>(), shape);
  if (inputs.scalar_type() == ScalarType::Int) {
    run<int32_t>(shape, arena, offsets, inputs, targets);
  } else {
    run<int64_t>(shape, arena, offsets, inputs, targets);
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CPU, m) {
  m.impl("extract_batch", TORCH_BOX(&extract_batch));
  m.impl("extract_batch.out", TORCH_BOX(&extract_batch_out));
}

}  // namespace aegis::ops
