#include <pybind11/pybind11.h>

#include "core/arena.h"
#include "python/bind.h"

namespace aegis {

namespace py = pybind11;

void bind_arena(py::module_& m) {
  py::register_exception<ArenaExhausted>(m, "ArenaExhausted", PyExc_MemoryError);
  py::class_<Arena, std::shared_ptr<Arena>>(m, "Arena", py::buffer_protocol())
      .def(py::init([](size_t nbytes, bool huge_pages, bool shared) {
             return std::make_shared<Arena>(
                 nbytes, MappingOptions{.huge_pages = huge_pages, .shared = shared});
           }),
           py::arg("nbytes"), py::kw_only(), py::arg("huge_pages") = false,
           py::arg("shared") = false)
      .def(
          "allocate",
          [](Arena& self, size_t nbytes) {
            return static_cast<size_t>(self.allocate(nbytes) - self.data());
          },
          py::arg("nbytes"))
      .def("reset", &Arena::reset)
      .def_property_readonly("nbytes", &Arena::size)
      .def_property_readonly("used", &Arena::used)
      .def_property_readonly("huge_pages",
                             [](const Arena& self) {
                               switch (self.mapping().huge_pages()) {
                                 case HugePages::none:
                                   return "none";
                                 case HugePages::advised:
                                   return "advised";
                                 case HugePages::reserved:
                                   return "reserved";
                               }
                               return "none";
                             })
      .def("fileno", [](const Arena& self) { return self.mapping().fd(); })
      .def_buffer([](Arena& self) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(self.data()),
                               static_cast<py::ssize_t>(self.size()));
      });
}

}  // namespace aegis
