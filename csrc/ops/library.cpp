// Every operator of torch.ops.aegis, one line each.
#include "ops/abi.h"

STABLE_TORCH_LIBRARY(aegis, m) {
  // clang-format off
  m.def("extract_batch(Tensor arena, Tensor offsets, SymInt block_size) -> (Tensor inputs, Tensor targets)");
  m.def("extract_batch.out(Tensor arena, Tensor offsets, *, Tensor(a!) inputs, Tensor(b!) targets) -> ()");
  m.def("decode_attention(Tensor query, Tensor keys, Tensor values, Tensor spans, float scale, int window=0, float softcap=0., Tensor? rows=None) -> Tensor");
  m.def("decode_attention.paged(Tensor query, Tensor keys, Tensor values, Tensor spans, float scale, Tensor blocks, int window=0, float softcap=0., Tensor? rows=None) -> Tensor");
  m.def("float8_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias=None) -> Tensor");
  m.def("float8_quantize(Tensor x, int block=0) -> (Tensor values, Tensor scales)");
  m.def("gather_records(Tensor source, Tensor indices) -> Tensor");
  m.def("gather_records.out(Tensor source, Tensor indices, *, Tensor(a!) out) -> ()");
  m.def("gather_records_scaled(Tensor source, Tensor indices, Tensor scale, Tensor bias, int dtype) -> Tensor");
  m.def("gather_records_scaled.out(Tensor source, Tensor indices, Tensor scale, Tensor bias, *, Tensor(a!) out) -> ()");
  m.def("kv_append_(Tensor(a!) keys, Tensor(b!) values, Tensor new_keys, Tensor new_values, Tensor positions, Tensor? rows=None) -> ()");
  m.def("kv_append_.paged(Tensor(a!) keys, Tensor(b!) values, Tensor new_keys, Tensor new_values, Tensor positions, Tensor blocks, Tensor? rows=None) -> ()");
  m.def("kv_move_(Tensor(a!) keys, Tensor(b!) values, Tensor sources, Tensor positions, Tensor? rows=None) -> ()");
  m.def("pack_ternary(Tensor weight, Tensor? scale=None, bool per_tensor=False) -> (Tensor packed, Tensor scale)");
  m.def("sample(Tensor logits, Tensor settings, Tensor state, bool keep_ties=False) -> (Tensor tokens, Tensor valid, Tensor logprobs)");
  m.def("sample.out(Tensor logits, Tensor settings, Tensor(a!) state, bool keep_ties=False, *, Tensor(b!) tokens, Tensor(c!)? valid=None, Tensor(d!)? logprobs=None) -> ()");
  m.def("skinny_linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  // .inference overloads know nothing of gradients. They call x another name: torch, at exit, takes overloads with equal arguments for one and aborts.
  m.def("float8_linear.inference(Tensor input, Tensor weight, Tensor weight_scale, Tensor? bias=None) -> Tensor");
  m.def("skinny_linear.inference(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("skinny_linear.out(Tensor x, Tensor weight, Tensor? bias=None, *, Tensor(a!) out) -> ()");
  m.def("ternary_linear(Tensor x, Tensor packed, Tensor scale, Tensor? bias=None, bool exact=False) -> Tensor");
  m.def("ternary_linear.inference(Tensor input, Tensor packed, Tensor scale, Tensor? bias=None, bool exact=False) -> Tensor");
  m.def("to_bfloat16_rne(Tensor x) -> Tensor");
  m.def("to_bfloat16_rne.out(Tensor x, *, Tensor(a!) out) -> ()");
  m.def("token_probabilities(Tensor scores, Tensor settings, bool keep_ties=False) -> Tensor");
  m.def("token_probabilities.out(Tensor scores, Tensor settings, bool keep_ties=False, *, Tensor(a!) out) -> ()");
  m.def("unpack_ternary(Tensor packed, Tensor scale, SymInt k) -> Tensor");
  // clang-format on
}
