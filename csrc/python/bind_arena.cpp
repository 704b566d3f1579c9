#include <pybind11/pybind11.h>

#include "core/arena.h"
#include "python/bind.h"

namespace aegis {

namespace py = pybind11;

void bind_arena(py::module_& m) {
  py::register_exception<ArenaExhausted>(m, "ArenaExhausted", PyExc_MemoryError).attr("__doc__") =
      "An arena had less room than was asked for; the text says both. Nothing was handed out.";
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
          py::arg("nbytes"),
          "Takes the next free bytes, uninitialised; where they begin, a multiple of 64. Raises "
          "ArenaExhausted.")
      .def("reset", &Arena::reset,
           "Takes everything back. Earlier tensors stay valid memory, which will be handed out "
           "again.")
      .def_property_readonly("nbytes", &Arena::size, "Size in bytes.")
      .def_property_readonly("used", &Arena::used, "Bytes handed out, padding included.")
      .def_property_readonly(
          "huge_pages",
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
          },
          "'none', 'advised' or 'reserved': what the system granted.")
      .def(
          "fileno", [](const Arena& self) { return self.mapping().fd(); },
          "The descriptor of a shared arena's memory; -1 of any other.")
      .def_buffer([](Arena& self) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(self.data()),
                               static_cast<py::ssize_t>(self.size()));
      });
}

}  // namespace aegis
