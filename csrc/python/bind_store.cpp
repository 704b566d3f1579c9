// Token files and the windows over them.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/token_header.h"
#include "core/token_store.h"
#include "core/token_windows.h"
#include "python/bind.h"
#include "python/dlpack.h"

namespace py = pybind11;

namespace aegis {
namespace {

using FileTuple = std::tuple<std::string, std::string, int64_t, int64_t, bool>;
using Indices = py::array_t<int64_t, py::array::c_style>;

TokenType parse_type(const std::string& dtype, const std::string& where) {
  const std::optional<TokenType> type = token_type_named(dtype);
  check<std::invalid_argument>(type.has_value(), where,
                               ": expected dtype uint8, uint16, uint32, int32 or int64, got ",
                               dtype);
  return *type;
}

std::shared_ptr<TokenStore> open_store(const std::vector<FileTuple>& tuples) {
  std::vector<TokenFile> files;
  for (const auto& [path, dtype, byte_offset, tokens, swapped] : tuples) {
    files.push_back({path, parse_type(dtype, path), byte_offset, tokens, swapped});
  }
  const py::gil_scoped_release release;
  return std::make_shared<TokenStore>(std::move(files));
}

std::vector<std::pair<int64_t, int64_t>> segments(const TokenStore& store) {
  std::vector<std::pair<int64_t, int64_t>> list;
  for (const Segment& segment : store.segments()) list.emplace_back(segment.begin, segment.tokens);
  return list;
}

py::capsule store_capsule(const std::shared_ptr<TokenStore>& store) {
  // DLPack knows no read-only memory; the store's is private, so writes stay in this process.
  return dlpack::make_capsule(const_cast<void*>(store->data()), std::array{store->extent()},
                              dlpack::data_type(store->type()), store);
}

const int64_t* vector_of(const Indices& indices) {
  check<std::invalid_argument>(indices.ndim() == 1, "indices: expected a 1-D array, got ",
                               indices.ndim(), " dimensions");
  return indices.data();
}

Indices offsets(const TokenWindows& windows, const Indices& indices) {
  const int64_t* in = vector_of(indices);
  Indices out(indices.size());
  windows.offsets(in, indices.size(), out.mutable_data());
  return out;
}

void verify_windows(const TokenWindows& windows, const Indices& indices) {
  const int64_t* in = vector_of(indices);
  const int64_t count = indices.size();
  const py::gil_scoped_release release;
  windows.verify(in, count);
}

void verify_window(const TokenWindows& windows, int64_t index) {
  const py::gil_scoped_release release;
  windows.verify(&index, 1);
}

py::object llmc_header(const py::bytes& head, int64_t file_size, const std::string& path) {
  const std::string_view view = head;
  const auto found = read_llmc_header(std::as_bytes(std::span(view)), file_size, path);
  if (!found) return py::none();
  return py::make_tuple(std::string(name(found->type)), found->byte_offset, found->tokens,
                        found->swapped);
}

int64_t raw_tokens(int64_t file_size, const std::string& dtype, const std::string& path) {
  return raw_token_count(file_size, parse_type(dtype, path), path);
}

}  // namespace

void bind_store(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<TokenStore, std::shared_ptr<TokenStore>>(m, "TokenStore")
      .def(py::init(&open_store), py::arg("files"))
      .def_property_readonly("tokens", &TokenStore::tokens)
      .def_property_readonly("extent", &TokenStore::extent)
      .def_property_readonly("dtype",
                             [](const TokenStore& s) { return std::string(name(s.type())); })
      .def_property_readonly("segments", &segments)
      .def(
          "verify", [](const TokenStore& s, size_t i) { s.verify(i); }, py::arg("segment"),
          Release())
      .def("verify_all", &TokenStore::verify_all, Release())
      .def("dlpack", &store_capsule);

  py::class_<TokenWindows, std::shared_ptr<TokenWindows>>(m, "TokenWindows")
      .def(py::init(
               [](const std::shared_ptr<TokenStore>& store, int64_t block_size, int64_t stride) {
                 return std::make_shared<TokenWindows>(store, block_size, stride);
               }),
           py::arg("store"), py::arg("block_size"), py::arg("stride"))
      .def("__len__", &TokenWindows::count)
      .def("offset", &TokenWindows::offset, py::arg("index"))
      .def("offsets", &offsets, py::arg("indices"))
      .def("verify", &verify_windows, py::arg("indices"))
      .def("verify_one", &verify_window, py::arg("index"))
      .def_property_readonly("tail_tokens", &TokenWindows::tail_tokens)
      .def_property_readonly("block_size", &TokenWindows::block_size)
      .def_property_readonly("stride", &TokenWindows::stride)
      .def_property_readonly("store", [](const TokenWindows& windows) {
        return std::const_pointer_cast<TokenStore>(windows.store());
      });

  m.def("read_token_header", &llmc_header, py::arg("head"), py::arg("file_size"),
        py::arg("path") = "file");
  m.def("raw_token_count", &raw_tokens, py::arg("file_size"), py::arg("dtype"),
        py::arg("path") = "file");
}

}  // namespace aegis
