// The page table, and questions to all of its pages.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/page_table.h"
#include "kernels/page_query.h"
#include "python/bind.h"

namespace aegis {
namespace {

namespace py = pybind11;

using Numbers = py::array_t<uint32_t, py::array::c_style>;

std::span<const uint32_t> span_of(const Numbers& numbers) {
  return {numbers.data(), static_cast<size_t>(numbers.size())};
}

Numbers array_of(std::span<const uint32_t> numbers) {
  return Numbers(static_cast<py::ssize_t>(numbers.size()), numbers.data());
}

/// Limits are inclusive; None leaves them open.
kernels::PageQuery query_of(const PageTable& table, uint8_t flag_mask, uint8_t flag_value,
                            std::optional<uint32_t> owner, std::pair<uint32_t, uint32_t> ages,
                            std::pair<uint32_t, uint32_t> references,
                            std::pair<uint8_t, uint8_t> frequencies) {
  const PageTable::Shadows shadows = table.shadows();
  const uint32_t now = table.clock();
  const bool older_than_all = ages.first > now;  // then no epoch will do
  return {shadows.flags,
          shadows.epochs,
          shadows.owners,
          shadows.references,
          shadows.frequencies,
          shadows.pages,
          flag_mask,
          flag_value,
          !owner,
          owner.value_or(0),
          older_than_all       ? 1
          : ages.second >= now ? 0
                               : now - ages.second,
          older_than_all    ? 0
          : ages.first == 0 ? UINT32_MAX
                            : now - ages.first,
          references.first,
          references.second,
          frequencies.first,
          frequencies.second,
          shadows.bounds,
          PageTable::kEvictable};
}

template <class... Arguments>
py::array_t<uint64_t> mask(const PageTable& table, Arguments... arguments) {
  py::array_t<uint64_t> bits((table.pages() + 63) / 64);
  kernels::page_query_kernel().mask(query_of(table, arguments...), bits.mutable_data());
  return bits;
}

template <class... Arguments>
int64_t oldest(const PageTable& table, Arguments... arguments) {
  return kernels::page_query_kernel().oldest(query_of(table, arguments...));
}

py::dict describe(const PageTable& table, uint32_t page) {
  const PageDescriptor& record = table.descriptor(page);
  py::dict result;
  result["owner"] =
      record.owner == PageTable::kNobody ? py::object(py::none()) : py::int_(record.owner);
  result["block"] =
      record.block == PageTable::kNoBlock ? py::object(py::none()) : py::int_(record.block);
  result["references"] = record.references;
  result["pins"] = record.pins;
  result["age"] = table.clock() - record.epoch;
  result["frequency"] = record.frequency;
  result["shareable"] = record.content != 0;
  return result;
}

}  // namespace

void bind_page_table(py::module_& m) {
  py::register_exception<PagesExhausted>(m, "PagesExhausted", PyExc_MemoryError).attr("__doc__") =
      "There were fewer pages, free and evictable together, than a call needed. Nothing was "
      "changed.";
  py::class_<PageTable> table(m, "PageTable");
  py::enum_<PageTable::Eviction>(table, "Eviction")
      .value("none", PageTable::Eviction::none)
      .value("lru", PageTable::Eviction::lru)
      .value("frequency", PageTable::Eviction::frequency);
  using Pair = std::pair<uint32_t, uint32_t>;
  using Bytes = std::pair<uint8_t, uint8_t>;
  table
      .def(py::init<int64_t, int64_t, PageTable::Eviction>(), py::arg("pages"),
           py::arg("block_size"), py::arg("eviction"))
      .def("copy", [](const PageTable& self) { return PageTable(self); })
      .def_property_readonly("pages", &PageTable::pages)
      .def_property_readonly("block_size", &PageTable::block_size)
      .def_property_readonly("free_pages", &PageTable::free_pages)
      .def_property_readonly("evictable_pages", &PageTable::evictable_pages)
      .def("begin", [](PageTable& self, uint32_t sequence,
                       const Numbers& tokens) { return self.begin(sequence, span_of(tokens)); })
      .def("append",
           [](PageTable& self, uint32_t sequence,
              const Numbers& tokens) -> std::optional<std::pair<uint32_t, uint32_t>> {
             const PageTable::Copy copy = self.append(sequence, span_of(tokens));
             if (copy.from == PageTable::kNoPage) return std::nullopt;
             return std::pair(copy.from, copy.to);
           })
      .def("lookup", [](const PageTable& self,
                        const Numbers& tokens) { return self.lookup(span_of(tokens)); })
      .def("extend",
           [](PageTable& self, const std::vector<uint32_t>& sequences,
              const std::vector<int64_t>& lengths) {
             std::vector<std::pair<uint32_t, uint32_t>> pairs;
             for (const PageTable::Copy& copy : self.extend(sequences, lengths)) {
               pairs.emplace_back(copy.from, copy.to);
             }
             return pairs;
           })
      .def("expect_room",
           [](const PageTable& self, const std::vector<uint32_t>& sequences,
              const std::vector<int64_t>& lengths) { self.expect_room(sequences, lengths); })
      .def("tell", [](PageTable& self, uint32_t sequence,
                      const Numbers& tokens) { self.tell(sequence, span_of(tokens)); })
      .def("known", &PageTable::known)
      .def("crop", &PageTable::crop)
      .def("trim", &PageTable::trim)
      .def("trimmed", &PageTable::trimmed)
      .def("fork", &PageTable::fork)
      .def("free", &PageTable::free)
      .def("has", &PageTable::has)
      .def("length", &PageTable::length)
      .def("pages_of", [](const PageTable& self,
                          uint32_t sequence) { return array_of(self.pages_of(sequence)); })
      .def("pin", &PageTable::pin)
      .def("unpin", [](PageTable& self, const Numbers& pages) { self.unpin(span_of(pages)); })
      .def("allocate", &PageTable::allocate)
      .def("release", &PageTable::release)
      .def("describe", &describe)
      .def("mask", &mask<uint8_t, uint8_t, std::optional<uint32_t>, Pair, Pair, Bytes>)
      .def("oldest", &oldest<uint8_t, uint8_t, std::optional<uint32_t>, Pair, Pair, Bytes>)
      .def("counts",
           [](const PageTable& self) {
             const PageTable::Counts counts = self.counts();
             return std::tuple(counts.shared, counts.evicted, counts.copied);
           })
      .def("check_invariants", &PageTable::check_invariants);
}

}  // namespace aegis
