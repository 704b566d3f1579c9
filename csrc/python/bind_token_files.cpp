// Headers and indices of token files, and the writer of aegis v1.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "core/aegis_header.h"
#include "core/aegis_writer.h"
#include "core/byte_source.h"
#include "core/check.h"
#include "core/id_scan.h"
#include "core/token_index.h"
#include "core/token_store.h"
#include "python/bind.h"

namespace py = pybind11;

namespace aegis {
namespace {

using IndexTuple = std::tuple<std::string, int64_t, int64_t, int64_t>;
using Positions = py::array_t<int64_t, py::array::c_style>;

TokenType type_named(const std::string& dtype) {
  const auto type = token_type_named(dtype);
  check<std::invalid_argument>(
      type.has_value(), "dtype: expected uint8, uint16, uint32, int32 or int64, got ", dtype);
  return *type;
}

/// The numbers as an array that owns them, without a copy.
Positions to_array(DocumentOffsets&& offsets) {
  auto owned = std::make_unique<DocumentOffsets>(std::move(offsets));
  const auto count = static_cast<py::ssize_t>(owned->size());
  const int64_t* data = owned->data();
  const py::capsule owner(owned.release(),
                          [](void* p) { delete static_cast<DocumentOffsets*>(p); });
  return Positions(count, data, owner);
}

/// Calls `read(DocumentOffsets*)` without the GIL: the index, or with `documents` the boundaries.
template <class F>
py::object read_index(bool documents, F&& read) {
  DocumentOffsets offsets;
  TokenIndex index{};
  {
    const py::gil_scoped_release release;
    index = read(documents ? &offsets : nullptr);
  }
  if (documents) return to_array(std::move(offsets));
  return py::cast(
      IndexTuple{std::string(name(index.type)), index.byte_offset, index.tokens, index.documents});
}

py::object megatron(const std::string& index, const std::string& path, int64_t size,
                    bool documents) {
  return read_index(documents, [&](DocumentOffsets* offsets) {
    return read_megatron_index(FileSource(index), size, path, offsets);
  });
}

py::object datatrove(const std::string& index, const std::string& path, int64_t size,
                     bool documents) {
  return read_index(documents, [&](DocumentOffsets* offsets) {
    return read_datatrove_index(FileSource(index), size, path, offsets);
  });
}

py::object litdata(const std::string& path, const std::string& dtype, bool documents) {
  const TokenType type = type_named(dtype);
  return read_index(documents, [&](DocumentOffsets* offsets) {
    return read_litdata_chunk(FileSource(path), type, offsets);
  });
}

py::object aegis_header(const py::bytes& head, int64_t file_size, const std::string& path) {
  const std::string_view view = head;
  const auto header = read_aegis_header(std::as_bytes(std::span(view)), file_size, path);
  if (!header) return py::none();
  py::dict found;
  found["dtype"] = std::string(name(*aegis_dtype(header->dtype)));
  found["byte_offset"] = header->tokens_at;
  found["tokens"] = header->tokens;
  found["documents"] =
      header->documents_at == 0 ? py::none() : py::object(py::int_(header->documents));
  found["vocab_size"] = header->vocab_size;
  found["largest_id"] = header->largest_id;
  found["checksum"] = header->header_checksum;
  found["tokenizer"] =
      py::bytes(reinterpret_cast<const char*>(header->tokenizer.data()), header->tokenizer.size());
  return found;
}

Positions aegis_documents(const std::string& path) {
  DocumentOffsets offsets;
  {
    const py::gil_scoped_release release;
    offsets = read_aegis_documents(FileSource(path));
  }
  return to_array(std::move(offsets));
}

void verify_aegis(const std::string& path, int threads) {
  verify_aegis_file(FileSource(path), threads);
}

void verify_aegis_bytes(const py::bytes& data, const std::string& path) {
  const std::string_view view = data;
  const py::gil_scoped_release release;  // bytes do not change
  verify_aegis_file(MemorySource(path, std::as_bytes(std::span(view))), 1);
}

void add_tokens(AegisWriter& writer, const py::array& tokens) {
  const TokenType type = type_named(py::str(tokens.dtype().attr("name")));
  const bool native = tokens.dtype().attr("isnative").cast<bool>();
  const bool aligned = reinterpret_cast<uintptr_t>(tokens.data()) % size_of(type) == 0;
  check<std::invalid_argument>(
      tokens.ndim() == 1 && (tokens.flags() & py::array::c_style) != 0 && native && aligned,
      "tokens: expected a contiguous, aligned 1-D array in this machine's byte order, got ",
      tokens.ndim(), " dimensions", native ? "" : ", another byte order",
      aligned ? "" : ", not aligned");
  const void* data = tokens.data();
  const int64_t count = tokens.size();
  const py::gil_scoped_release release;
  writer.add(type, data, count);
}

void end_documents(AegisWriter& writer, const Positions& ends) {
  check<std::invalid_argument>(ends.ndim() == 1, "ends: expected a 1-D array, got ", ends.ndim(),
                               " dimensions");
  writer.end_documents({ends.data(), static_cast<size_t>(ends.size())});
}

void finish(AegisWriter& writer, uint64_t vocab_size, const py::bytes& tokenizer) {
  const std::string_view view = tokenizer;
  std::array<uint8_t, 32> hash{};
  check<std::invalid_argument>(view.size() == hash.size(),
                               "tokenizer: expected a hash of 32 bytes, got ", view.size());
  std::memcpy(hash.data(), view.data(), hash.size());
  const py::gil_scoped_release release;
  writer.finish(vocab_size, hash);
}

std::tuple<int64_t, int64_t, int64_t> scan(const TokenStore& store, size_t segment, int64_t begin,
                                           int64_t count, int64_t limit, int threads) {
  const Segment& where = store.segments().at(segment);
  check<std::invalid_argument>(0 <= begin && 0 < count && count <= where.tokens - begin,
                               "begin, count: expected tokens within 0 to ", where.tokens, ", got ",
                               count, " from ", begin);
  const auto* base = static_cast<const std::byte*>(store.data());
  const auto item = static_cast<int64_t>(size_of(store.type()));
  const IdScan found =
      scan_ids(store.type(), base + (where.begin + begin) * item, count, limit, threads);
  store.verify(segment);  // a file cut short reads as zeroes
  return {found.smallest, found.largest,
          found.first_outside < 0 ? found.first_outside : begin + found.first_outside};
}

}  // namespace

void bind_token_files(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  m.def("read_megatron_index", &megatron, py::arg("index"), py::arg("path"), py::arg("size"),
        py::kw_only(), py::arg("documents") = false);
  m.def("read_datatrove_index", &datatrove, py::arg("index"), py::arg("path"), py::arg("size"),
        py::kw_only(), py::arg("documents") = false);
  m.def("read_litdata_chunk", &litdata, py::arg("path"), py::arg("dtype"), py::kw_only(),
        py::arg("documents") = false);
  m.def("read_aegis_header", &aegis_header, py::arg("head"), py::arg("file_size"),
        py::arg("path") = "file");
  m.def("read_aegis_documents", &aegis_documents, py::arg("path"));
  m.def("verify_aegis_file", &verify_aegis, py::arg("path"), py::arg("threads") = 1, Release());
  m.def("verify_aegis_bytes", &verify_aegis_bytes, py::arg("data"), py::arg("path"));
  m.def("scan_ids", &scan, py::arg("store"), py::arg("segment"), py::arg("begin"), py::arg("count"),
        py::arg("limit") = INT64_MAX, py::arg("threads") = 1, Release());

  py::class_<AegisWriter>(m, "AegisWriter")
      .def(py::init([](const std::string& path, const std::string& dtype) {
             return std::make_unique<AegisWriter>(path, type_named(dtype));
           }),
           py::arg("path"), py::arg("dtype"))
      .def("add", &add_tokens, py::arg("tokens"))
      .def("end_documents", &end_documents, py::arg("ends"))
      .def("finish", &finish, py::arg("vocab_size"), py::arg("tokenizer"))
      .def_property_readonly("tokens", &AegisWriter::tokens)
      .def_property_readonly("largest_id", &AegisWriter::largest_id);
}

}  // namespace aegis
