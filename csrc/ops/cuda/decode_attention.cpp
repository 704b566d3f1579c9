#include "ops/decode_attention.h"

#include <algorithm>

#include "kernels/cuda/decode_attention.h"
#include "ops/cuda/stream.h"

namespace aegis::ops {
namespace {

/// Spans as rows of two adjacent numbers, which they may be amid others.
Tensor rows_of(const Tensor& spans, int64_t batch) {
  const bool rows = spans.dim() > 0 && spans.size(0) == batch && spans.size(-1) == 2 &&
                    (spans.dim() == 2 || spans.dim() == 4) && spans.stride(-1) == 1;
  return rows ? spans : as_contiguous(spans);
}

Tensor attend(const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& spans,
              double scale, int64_t window, double softcap, const std::optional<Tensor>& rows,
              const std::optional<Tensor>& blocks) {
  check_decode_attention(query, keys, values, spans, window, softcap, rows, blocks);
  const int64_t batch = query.size(0), head_size = query.size(3);
  check<std::invalid_argument>(head_size <= kernels::cuda::kMaxHeadSize,
                               "query: expected a head size of at most ",
                               kernels::cuda::kMaxHeadSize, " on CUDA, got ", head_size);
  const int64_t row_pages = blocks ? std::max(blocks->size(1), int64_t{1}) : 1;
  check<std::invalid_argument>(keys.size(2) <= kernels::kMostPositions / row_pages,
                               "keys: expected at most ", kernels::kMostPositions,
                               " slots for a row, got ", keys.size(2),
                               blocks ? " on each of its pages" : "");
  const torch::stable::accelerator::DeviceGuard guard(query.get_device_index());
  const Tensor span_rows = rows_of(spans, batch);
  const Tensor packed_rows = rows ? as_contiguous(*rows) : spans;
  Tensor out = torch::stable::new_empty(query, {batch, 1, query.size(1), head_size});
  with_float_type(query.scalar_type(), "query", [&]<class Element>(std::type_identity<Element>) {
    kernels::cuda::DecodeAttentionOnDevice<Element> on_device{
        decode_attention_job<Element>(query, keys, values, scale, softcap, blocks, out),
        span_rows.const_data_ptr<int64_t>(),
        span_rows.dim() == 2 || span_rows.dim() == 4 ? span_rows.stride(0) : 2,
        rows ? packed_rows.const_data_ptr<int64_t>() : nullptr,
        batch,
        window,
        blocks ? blocks->size(0) : keys.size(0),
        blocks ? blocks->size(1) : 0,
        keys.size(0),
        nullptr};
    const Tensor parts =
        torch::stable::new_empty(query, {on_device.part_floats()}, ScalarType::Float);
    on_device.parts = static_cast<float*>(parts.mutable_data_ptr());
    kernels::cuda::launch_decode_attention(on_device, current_stream(query.get_device_index()));
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(aegis, CUDA, m) {
  m.impl("decode_attention", TORCH_BOX(&decode_attention<attend>));
  m.impl("decode_attention.paged", TORCH_BOX(&decode_attention_paged<attend>));
}

}  // namespace aegis::ops
