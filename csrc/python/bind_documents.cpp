// Documents, the rows made of them, what fills batches of such rows, and mixtures of their sources.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/check.h"
#include "core/documents.h"
#include "core/mixture.h"
#include "core/row_filler.h"
#include "core/token_rows.h"
#include "python/bind.h"

namespace aegis {
namespace {

namespace py = pybind11;
using Offsets = py::array_t<int64_t, py::array::c_style>;
using Release = py::call_guard<py::gil_scoped_release>;

std::shared_ptr<Documents> make_documents(const std::shared_ptr<TokenStore>& store,
                                          const std::vector<Offsets>& arrays) {
  std::vector<std::vector<int64_t>> offsets;
  for (const Offsets& array : arrays)
    offsets.emplace_back(array.data(), array.data() + array.size());
  const py::gil_scoped_release release;
  return std::make_shared<Documents>(store, offsets);
}

Offsets offsets_of(const Documents& documents, size_t segment) {
  check<std::out_of_range>(segment < documents.store()->segments().size(),
                           "segment: expected fewer than ", documents.store()->segments().size(),
                           ", got ", segment);
  const int64_t* begin = documents.begin(segment);
  Offsets out(documents.end(segment) - begin);
  int64_t* to = out.mutable_data();
  for (const int64_t* bound = begin; bound < documents.end(segment); ++bound)
    *to++ = *bound - *begin;
  return out;
}

Offsets scan(const TokenStore& store, size_t segment, int64_t id, bool begins) {
  std::vector<int64_t> offsets;
  {
    const py::gil_scoped_release release;
    offsets = find_documents(store, segment, id, begins);
  }
  return Offsets(static_cast<py::ssize_t>(offsets.size()), offsets.data());
}

std::vector<std::tuple<int64_t, int64_t, bool>> pieces_of(const TokenRows& rows, int64_t index) {
  check<std::out_of_range>(0 <= index && index < rows.count(), "index: expected 0 to ",
                           rows.count() - 1, ", got ", index);
  std::vector<Piece> pieces;
  rows.pieces(index, pieces);
  std::vector<std::tuple<int64_t, int64_t, bool>> out;
  for (const Piece& piece : pieces) out.emplace_back(piece.begin, piece.count, piece.ends);
  return out;
}

using SourceTuple = std::tuple<std::shared_ptr<TokenRows>, std::optional<int64_t>>;

std::shared_ptr<RowFiller> make_filler(const std::vector<SourceTuple>& tuples,
                                       const std::vector<std::string>& fields,
                                       std::optional<int64_t> max_documents) {
  std::vector<RowSource> sources;
  for (const auto& [rows, ignore_index] : tuples) sources.push_back({rows, ignore_index});
  RowFields wanted;
  wanted.max_documents = max_documents;
  for (const std::string& name : fields) {
    bool* const flag = name == "document_ids"   ? &wanted.document_ids
                       : name == "position_ids" ? &wanted.position_ids
                       : name == "valid"        ? &wanted.valid
                       : name == "cu_seqlens"   ? &wanted.cu_seqlens
                                                : nullptr;
    check<std::invalid_argument>(flag != nullptr,
                                 "fields: expected document_ids, position_ids, valid or "
                                 "cu_seqlens, got ",
                                 name);
    *flag = true;
  }
  return std::make_shared<RowFiller>(std::move(sources), wanted);
}

void check_source(const MixtureRound& round, size_t source, const char* name, int64_t number) {
  check<std::out_of_range>(source < round.weights().size(), "source: expected fewer than ",
                           round.weights().size(), ", got ", source);
  check<std::invalid_argument>(number >= 0, name, ": expected at least 0, got ", number);
}

}  // namespace

void bind_documents(py::module_& m) {
  py::class_<Documents, std::shared_ptr<Documents>>(m, "Documents")
      .def(py::init(&make_documents), py::arg("store"), py::arg("offsets"))
      .def("__len__", &Documents::count)
      .def("offsets", &offsets_of, py::arg("segment"));
  m.def("find_documents", &scan, py::arg("store"), py::arg("segment"), py::arg("id"),
        py::arg("begins"));

  py::class_<TokenRows, std::shared_ptr<TokenRows>>(m, "TokenRows")
      .def("__len__", &TokenRows::count)
      .def_property_readonly("block_size", &TokenRows::block_size)
      .def_property_readonly("tail_tokens", &TokenRows::tail_tokens)
      .def("pieces", &pieces_of, py::arg("index"));
  py::class_<StreamRows, TokenRows, std::shared_ptr<StreamRows>>(m, "StreamRows")
      .def(
          py::init([](std::shared_ptr<TokenWindows> windows, std::shared_ptr<Documents> documents) {
            return std::make_shared<StreamRows>(std::move(windows), std::move(documents));
          }),
          py::arg("windows"), py::arg("documents") = nullptr);
  py::class_<AlignedRows, TokenRows, std::shared_ptr<AlignedRows>>(m, "AlignedRows")
      .def(py::init([](std::shared_ptr<Documents> documents, int64_t block_size) {
             return std::make_shared<AlignedRows>(std::move(documents), block_size);
           }),
           py::arg("documents"), py::arg("block_size"), Release());
  py::class_<PackedRows, TokenRows, std::shared_ptr<PackedRows>>(m, "PackedRows")
      .def(py::init(
               [](std::shared_ptr<Documents> documents, int64_t block_size, int64_t kept_bytes) {
                 return std::make_shared<PackedRows>(std::move(documents), block_size, kept_bytes);
               }),
           py::arg("documents"), py::arg("block_size"), py::arg("kept_bytes") = int64_t{1} << 30,
           Release());

  py::class_<RowFiller, BatchFiller, std::shared_ptr<RowFiller>>(m, "RowFiller")
      .def(py::init(&make_filler), py::arg("sources"), py::arg("fields"), py::kw_only(),
           py::arg("max_documents") = py::none());

  py::class_<MixtureRound, std::shared_ptr<MixtureRound>>(m, "MixtureRound")
      .def(py::init<std::vector<int64_t>>(), py::arg("weights"), Release())
      .def("__len__", &MixtureRound::length)
      .def_property_readonly("weights", &MixtureRound::weights)
      .def("at",
           [](const MixtureRound& self, int64_t position) {
             check<std::invalid_argument>(position >= 0, "position: expected at least 0, got ",
                                          position);
             const auto [source, before] = self.at(position);
             return std::pair(source, before);
           })
      .def("count",
           [](const MixtureRound& self, size_t source, int64_t position) {
             check_source(self, source, "position", position);
             return self.count(source, position);
           })
      .def("position_of", [](const MixtureRound& self, size_t source, int64_t before) {
        check_source(self, source, "before", before);
        return self.position_of(source, before);
      });
  py::class_<MixtureOrder, SampleOrder, std::shared_ptr<MixtureOrder>>(m, "MixtureOrder")
      .def(py::init([](std::shared_ptr<MixtureRound> round,
                       const std::vector<std::tuple<int64_t, int64_t, int64_t>>& tuples,
                       int64_t phase, uint64_t seed, bool shuffle) {
             std::vector<MixtureOrder::Source> sources;
             for (const auto& [samples, pass, begin] : tuples)
               sources.push_back({samples, pass, begin});
             return std::make_shared<MixtureOrder>(std::move(round), std::move(sources), phase,
                                                   seed, shuffle);
           }),
           py::arg("round"), py::arg("sources"), py::kw_only(), py::arg("phase"), py::arg("seed"),
           py::arg("shuffle"));
}

}  // namespace aegis
