// The Python module aegis._C: torch-free objects with state. Operators are torch.ops.aegis.*
// instead.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/cpu.h"
#include "python/bind.h"

namespace py = pybind11;

namespace {

py::dict build_info() {
  py::list isas;
  for (aegis::Isa isa : aegis::available_isas()) isas.append(std::string(aegis::name(isa)));
  py::dict info;
  info["version"] = AEGIS_VERSION;
  info["isas"] = isas;
  info["cuda"] = static_cast<bool>(AEGIS_WITH_CUDA);
  info["cuda_archs"] = AEGIS_CUDA_ARCHS;
  info["torch_target"] = "2.11";
  info["compiler"] = __VERSION__;
  return info;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def(
      "cpu_isa", [] { return std::string(aegis::name(aegis::active_isa())); },
      "The level of instruction sets in force: 'scalar', 'avx2', 'avx512', 'avx512_vnni' or "
      "'avx512_bf16'. The highest that this machine can run, or the one that AEGIS_FORCE_ISA "
      "named when aegis was imported.");
  m.def("build_info", build_info,
        "What this build is, as a dict: ``version``; ``isas``, the levels of instruction sets that "
        "it has kernels for and this machine can run, lowest first; ``cuda``, whether it has CUDA "
        "kernels, and ``cuda_archs``, for which architectures; ``torch_target``, the oldest torch "
        "that it runs with; ``compiler``.");
  aegis::bind_arena(m);
  aegis::bind_store(m);
  aegis::bind_token_files(m);
  aegis::bind_token_tree(m);
  aegis::bind_evidence(m);
  aegis::bind_feeder(m);
  aegis::bind_documents(m);
  aegis::bind_records(m);  // after the filler that both derive from
  aegis::bind_slots(m);
  aegis::bind_kv(m);
  aegis::bind_page_table(m);
  aegis::bind_spsc_ring(m);
}
