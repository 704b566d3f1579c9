// DLPack capsules: memory of ours as a tensor of any library, without its headers.
//
// The structures are those of DLPack 0.8 (github.com/dmlc/dlpack, the unversioned "dltensor").
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/dtype.h"

namespace aegis::dlpack {

enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct DataType {
  uint8_t code;  ///< a TypeCode
  uint8_t bits;
  uint16_t lanes = 1;
};

struct Device {
  int32_t type = 1;  ///< 1 CPU, 2 CUDA, 3 CUDA-pinned host memory
  int32_t id = 0;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  ///< in elements
  uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

inline DataType data_type(TokenType type) {
  const bool is_signed = type == TokenType::i32 || type == TokenType::i64;
  return {is_signed ? kInt : kUInt, static_cast<uint8_t>(8 * size_of(type))};
}

/// The most dimensions a tensor made here may have.
inline constexpr size_t kMaxDims = 8;

/// A ManagedTensor with what it points to, and whatever keeps its memory alive.
template <class Owner>
struct Record {
  ManagedTensor managed{};
  std::array<int64_t, kMaxDims> shape{};
  std::array<int64_t, kMaxDims> strides{};
  Owner owner;

  explicit Record(Owner owner) : owner(std::move(owner)) {}
};

/// The capsule of a row-major tensor over `data`. The tensor made from it keeps `owner` until the
/// last view of it is gone, and destroys it then: on any thread, without the GIL, so the owner is
/// plain C++ whose destructor does not throw. A capsule that nobody turned into a tensor destroys
/// its owner itself. One allocation, besides Python's own. Throws std::invalid_argument for more
/// than kMaxDims dimensions.
template <class Owner>
pybind11::capsule make_capsule(void* data, std::span<const int64_t> shape, DataType dtype,
                               Owner owner, Device device = {}) {
  check<std::invalid_argument>(shape.size() <= kMaxDims, "shape: expected at most ", kMaxDims,
                               " dimensions, got ", shape.size());
  auto record = std::make_unique<Record<Owner>>(std::move(owner));
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0; step *= shape[i]) {
    record->shape[i] = shape[i];
    record->strides[i] = step;
  }
  record->managed = {
      {data, device, static_cast<int32_t>(shape.size()), dtype, record->shape.data(),
       record->strides.data(), 0},
      record.get(),
      [](ManagedTensor* self) { delete static_cast<Record<Owner>*>(self->context); }};
  PyObject* capsule = PyCapsule_New(&record->managed, "dltensor", [](PyObject* self) {
    // Whoever takes the tensor renames the capsule.
    if (!PyCapsule_IsValid(self, "dltensor")) return;
    auto* managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(self, "dltensor"));
    managed->deleter(managed);
  });
  if (capsule == nullptr) throw pybind11::error_already_set();
  record.release();
  return pybind11::reinterpret_steal<pybind11::capsule>(capsule);
}

/// Takes the tensor out of a capsule that another library made. The memory is that library's and
/// stays until the last copy of the result is gone; its deleter, which takes the GIL itself if it
/// needs it, may then run on any thread. Throws pybind11::type_error where it is no such capsule or
/// was taken already.
inline std::shared_ptr<const Tensor> take(pybind11::handle capsule) {
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    throw pybind11::type_error("expected an unused DLPack capsule, got " +
                               std::string(pybind11::repr(capsule)));
  }
  auto* managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  // First: where no memory is left for the pointer, it has called the deleter.
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  return std::shared_ptr<const Tensor>(&managed->tensor, [managed](const Tensor*) {
    if (managed->deleter != nullptr) managed->deleter(managed);
  });
}

}  // namespace aegis::dlpack
