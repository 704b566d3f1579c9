// The host's side of a KV cache. Tensors are Python's affair.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "core/kv_slots.h"
#include "python/bind.h"

namespace aegis {

namespace py = pybind11;

using Rows = std::vector<int64_t>;

void bind_kv(py::module_& m) {
  py::class_<KvSlots>(m, "KvSlots")
      .def(py::init([](int64_t rows, int64_t capacity,
                       const std::vector<std::pair<int64_t, int64_t>>& windows) {
             std::vector<KvWindow> list;
             for (const auto& [slots, window] : windows) list.push_back({slots, window});
             return KvSlots(rows, capacity, std::move(list));
           }),
           py::arg("rows"), py::arg("capacity"),
           py::arg("windows") = std::vector<std::pair<int64_t, int64_t>>{})
      .def_property_readonly("rows", &KvSlots::rows)
      .def_property_readonly("capacity", &KvSlots::capacity)
      .def_property_readonly("rows_in_use", &KvSlots::rows_in_use)
      .def_property_readonly("lengths",
                             [](const KvSlots& self) {
                               Rows lengths;
                               for (int64_t row = 0; row < self.rows(); ++row) {
                                 lengths.push_back(self.length(row));
                               }
                               return lengths;
                             })
      .def("in_use", &KvSlots::in_use, py::arg("row"))
      .def(
          "length_range",
          [](const KvSlots& self, const Rows& rows) { return self.length_range(rows); },
          py::arg("rows"))
      .def("acquire", &KvSlots::acquire)
      .def(
          "release", [](KvSlots& self, const Rows& rows) { self.release(rows); }, py::arg("rows"))
      .def("reset", &KvSlots::reset)
      .def(
          "begin",
          [](KvSlots& self, const Rows& rows, int64_t tokens) { return self.begin(rows, tokens); },
          py::arg("rows"), py::arg("tokens"))
      .def("leftovers",
           [](const KvSlots& self) {
             std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> left;
             for (const KvLeftover& l : self.leftovers()) {
               left.emplace_back(l.row, l.from, l.touched, l.before);
             }
             return left;
           })
      .def("touch_free", &KvSlots::touch_free, py::arg("tokens"))
      .def("commit", &KvSlots::commit, py::arg("cleared") = false)
      .def("abort", &KvSlots::abort)
      .def("croppable", &KvSlots::croppable, py::arg("row"))
      .def(
          "crop",
          [](KvSlots& self, const Rows& rows, const Rows& tokens) { self.crop(rows, tokens); },
          py::arg("rows"), py::arg("tokens"))
      .def(
          "gather", [](KvSlots& self, const Rows& sources) { self.gather(sources); },
          py::arg("sources"))
      .def("copy", [](const KvSlots& self) { return KvSlots(self); });
}

}  // namespace aegis
