// One function for each file of bindings.
#pragma once

#include <pybind11/pybind11.h>

namespace aegis::python {

void bind_arena(pybind11::module_& m);
void bind_store(pybind11::module_& m);
void bind_feeder(pybind11::module_& m);

}  // namespace aegis::python
