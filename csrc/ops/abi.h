// The one door to torch: short names for the stable ABI, and checks in the words of tensors.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <type_traits>

#include "core/check.h"
#include "core/dtype.h"
#include "kernels/element.h"

namespace aegis::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Streams as "[3, 4]", for messages; costs nothing where no message is made.
template <class List>
struct ListText {
  const List& values;
};

template <class List>
ListText<List> list_of(const List& values) {
  return {values};
}

template <class List>
std::ostream& operator<<(std::ostream& text, ListText<List> list) {
  const char* separator = "";
  text << '[';
  for (int64_t value : list.values) {
    text << separator << value;
    separator = ", ";
  }
  return text << ']';
}

struct ShapeText {
  const Tensor& tensor;
};

inline ShapeText shape_of(const Tensor& t) { return {t}; }

inline std::ostream& operator<<(std::ostream& text, ShapeText shape) {
  return text << list_of(shape.tensor.sizes());
}

/// `t` itself where it is contiguous.
inline Tensor as_contiguous(const Tensor& t) {
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}

/// "uint16": what Python calls a dtype, for messages.
inline const char* name_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::UInt16:
      return "uint16";
    case ScalarType::UInt32:
      return "uint32";
    case ScalarType::UInt64:
      return "uint64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Float8_e4m3fn:
      return "float8_e4m3fn";
    case ScalarType::Bool:
      return "bool";
    default:
      return torch::headeronly::toString(dtype);
  }
}

inline void check_dtype(const Tensor& t, ScalarType dtype, const char* name) {
  check<std::invalid_argument>(t.scalar_type() == dtype, name, ": expected dtype ", name_of(dtype),
                               ", got ", name_of(t.scalar_type()));
}

inline void check_vector(const Tensor& t, const char* name) {
  check<std::invalid_argument>(t.dim() == 1 && t.is_contiguous(), name,
                               ": expected a contiguous 1-D tensor, got shape ", shape_of(t),
                               t.is_contiguous() ? "" : ", not contiguous");
}

inline void check_matrix(const Tensor& t, int64_t rows, int64_t columns, const char* name) {
  check<std::invalid_argument>(
      t.dim() == 2 && t.size(0) == rows && t.size(1) == columns && t.is_contiguous(), name,
      ": expected a contiguous tensor of shape [", rows, ", ", columns, "], got shape ",
      shape_of(t), t.is_contiguous() ? "" : ", not contiguous");
}

/// All operands of an op live where `like` lives.
inline void check_same_device(const Tensor& t, const Tensor& like, const char* name,
                              const char* like_name) {
  check<std::invalid_argument>(
      t.is_cpu() == like.is_cpu() && t.get_device_index() == like.get_device_index(), name,
      ": expected to be on the device of ", like_name, ", got another device");
}

/// The bytes from the first to past the last element of a tensor, gaps between them included.
struct Extent {
  const char* begin;
  const char* end;
};

inline Extent extent_of(const Tensor& t, size_t item_bytes) {
  const char* begin = static_cast<const char*>(t.const_data_ptr());
  if (t.numel() == 0) return {begin, begin};
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return {begin, begin + static_cast<size_t>(last + 1) * item_bytes};
}

/// A written tensor may not share memory with another operand.
inline void check_disjoint(Extent written, Extent other, const char* name, const char* other_name) {
  check<std::invalid_argument>(written.end <= other.begin || other.end <= written.begin, name,
                               ": expected memory of its own, got a tensor that overlaps ",
                               other_name);
}

/// The type of token in `t`. Throws std::invalid_argument where it is none.
inline TokenType token_type_of(const Tensor& t, const char* name) {
  switch (t.scalar_type()) {
    case ScalarType::Byte:
      return TokenType::u8;
    case ScalarType::UInt16:
      return TokenType::u16;
    case ScalarType::UInt32:
      return TokenType::u32;
    case ScalarType::Int:
      return TokenType::i32;
    case ScalarType::Long:
      return TokenType::i64;
    default:
      throw std::invalid_argument(std::string(name) +
                                  ": expected dtype uint8, uint16, uint32, int32 or int64, got " +
                                  name_of(t.scalar_type()));
  }
}

/// Calls `f(std::type_identity<E>{})` with the kernels' type for float32, float16 or bfloat16.
/// Throws std::invalid_argument where `dtype`, which is that of the tensor called `name`, is none
/// of them.
template <class F>
decltype(auto) with_float_type(ScalarType dtype, const char* name, F&& f) {
  switch (dtype) {
    case ScalarType::Float:
      return f(std::type_identity<float>{});
    case ScalarType::Half:
      return f(std::type_identity<kernels::Half>{});
    case ScalarType::BFloat16:
      return f(std::type_identity<kernels::BFloat16>{});
    default:
      throw std::invalid_argument(std::string(name) +
                                  ": expected dtype float32, bfloat16 or float16, got " +
                                  name_of(dtype));
  }
}

}  // namespace aegis::ops
