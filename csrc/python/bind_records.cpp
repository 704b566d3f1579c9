// Record arrays: memory lent by other libraries, gathered by C++ threads.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/record_filler.h"
#include "python/bind.h"
#include "python/dlpack.h"

namespace aegis {
namespace {

namespace py = pybind11;

/// (code, bits, row shape): as BatchFiller.fields gives them.
using FieldTuple = std::tuple<int, int, std::vector<int64_t>>;
/// (scale, bias, whether bfloat16 comes out).
using ScalingTuple = std::tuple<std::vector<float>, std::vector<float>, bool>;
/// (DLPack capsule of the rows, field, scaling, the file behind the rows).
using ArrayTuple =
    std::tuple<py::object, FieldTuple, std::optional<ScalingTuple>, std::shared_ptr<TokenStore>>;

bool rows_contiguous(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t step = 1;
  for (int32_t d = tensor.ndim - 1; d > 0; --d) {
    if (tensor.shape[d] != 1 && tensor.strides[d] != step) return false;
    step *= tensor.shape[d];
  }
  return true;
}

RecordArray read_array(const ArrayTuple& tuple, size_t at) {
  const auto& [capsule, field, scaling, file] = tuple;
  const std::shared_ptr<const dlpack::Tensor> tensor = dlpack::take(capsule);
  using Bad = std::invalid_argument;
  check<Bad>(tensor->device.type == 1 || tensor->device.type == 3, "array ", at,
             ": expected CPU memory, got DLPack device ", tensor->device.type);
  check<Bad>(tensor->ndim >= 1 && rows_contiguous(*tensor), "array ", at,
             ": expected contiguous rows");
  int64_t row_items = 1;
  for (int32_t d = 1; d < tensor->ndim; ++d) row_items *= tensor->shape[d];
  const int64_t item_bytes = tensor->dtype.bits / 8 * tensor->dtype.lanes;

  RecordArray array;
  const auto& [code, bits, row_shape] = field;
  array.stored = {{static_cast<uint8_t>(code), static_cast<uint8_t>(bits)}, row_shape};
  const auto row_bytes = static_cast<size_t>(row_items * item_bytes);
  check<Bad>(array.stored.row_bytes() == row_bytes, "array ", at, ": expected rows of ",
             array.stored.row_bytes(), " bytes, got ", row_bytes);
  array.data = static_cast<const std::byte*>(tensor->data) + tensor->byte_offset;
  array.rows = tensor->shape[0];
  array.row_stride = (tensor->strides ? tensor->strides[0] : row_items) * item_bytes;
  if (scaling) {
    const auto& [scale, bias, to_bfloat16] = *scaling;
    array.scaling = {to_bfloat16 ? RecordScaling::Type::bfloat16 : RecordScaling::Type::float32,
                     scale, bias};
  }
  array.owner = tensor;
  array.file = file;
  return array;
}

std::shared_ptr<RecordFiller> make_filler(const std::vector<ArrayTuple>& tuples) {
  std::vector<RecordArray> arrays;
  for (const ArrayTuple& tuple : tuples) arrays.push_back(read_array(tuple, arrays.size()));
  return std::make_shared<RecordFiller>(std::move(arrays));
}

}  // namespace

void bind_records(py::module_& m) {
  m.attr("MAX_FIELDS") = kMaxFields;
  m.attr("MAX_DIMS") = dlpack::kMaxDims;
  py::class_<RecordFiller, BatchFiller, std::shared_ptr<RecordFiller>>(m, "RecordFiller")
      .def(py::init(&make_filler), py::arg("arrays"));
}

}  // namespace aegis
