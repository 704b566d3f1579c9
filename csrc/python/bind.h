// What each bind_*.cpp adds to the module aegis._C.
#pragma once

#include <pybind11/pybind11.h>

namespace aegis {

void bind_arena(pybind11::module_& m);
void bind_documents(pybind11::module_& m);
void bind_evidence(pybind11::module_& m);
void bind_feeder(pybind11::module_& m);
void bind_kv(pybind11::module_& m);
void bind_page_table(pybind11::module_& m);
void bind_records(pybind11::module_& m);
void bind_slots(pybind11::module_& m);
void bind_spsc_ring(pybind11::module_& m);
void bind_store(pybind11::module_& m);
void bind_token_files(pybind11::module_& m);
void bind_token_tree(pybind11::module_& m);

}  // namespace aegis
