// DLPack 0.8 capsules (https://dmlc.github.io/dlpack): how memory of ours becomes a torch tensor
// without torch's headers.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/batch_filler.h"

namespace aegis::python {

struct DLDevice {
  int32_t type;  // 1: CPU
  int32_t id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};

/// A capsule over CPU memory of `shape`, row-major. `owner` is kept until the last tensor over the
/// memory is gone, and destroyed on whatever thread that happens on, without the GIL: it must not
/// touch Python.
template <class Owner>
pybind11::object make_dlpack(void* data, FieldType type, std::span<const int64_t> shape,
                             Owner owner) {
  struct Export {
    DLManagedTensor managed;
    std::vector<int64_t> extents;  // shape, then strides
    Owner owner;
  };
  const size_t ndim = shape.size();
  auto* exported = new Export{{}, std::vector<int64_t>(2 * ndim), std::move(owner)};
  int64_t stride = 1;
  for (size_t d = ndim; d-- > 0;) {
    exported->extents[d] = shape[d];
    exported->extents[ndim + d] = stride;
    stride *= shape[d];
  }
  int64_t* extents = exported->extents.data();
  exported->managed = {
      {data,
       {1, 0},
       static_cast<int32_t>(ndim),
       {type.code, type.bits, 1},
       extents,
       extents + ndim,
       0},
      exported,
      [](DLManagedTensor* managed) { delete static_cast<Export*>(managed->context); }};
  // A capsule that nobody consumed still owns the memory; a consumer renames it.
  PyObject* capsule = PyCapsule_New(&exported->managed, "dltensor", [](PyObject* self) {
    if (!PyCapsule_IsValid(self, "dltensor")) return;
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(self, "dltensor"));
    managed->deleter(managed);
  });
  if (capsule == nullptr) {
    delete exported;
    throw pybind11::error_already_set();
  }
  return pybind11::reinterpret_steal<pybind11::object>(capsule);
}

}  // namespace aegis::python
