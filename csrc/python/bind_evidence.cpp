// Checksums over training runs.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "core/check.h"
#include "core/fnv.h"
#include "core/integrity_chain.h"
#include "kernels/fnv_lanes.h"
#include "python/bind.h"

namespace aegis {
namespace {

namespace py = pybind11;

IntegrityChain::Part bytes_of(const py::buffer_info& info) {
  py::ssize_t step = info.itemsize;
  for (py::ssize_t d = info.ndim - 1; d >= 0; --d) {
    check<std::invalid_argument>(info.shape[d] == 1 || info.strides[d] == step,
                                 "part: expected contiguous memory");
    step *= info.shape[d];
  }
  return {static_cast<const std::byte*>(info.ptr),
          static_cast<size_t>(info.size) * static_cast<size_t>(info.itemsize)};
}

void add(IntegrityChain& chain, int64_t step, double loss, const std::vector<py::buffer>& buffers) {
  std::vector<py::buffer_info> infos;
  std::vector<IntegrityChain::Part> parts;
  for (const py::buffer& buffer : buffers) infos.push_back(buffer.request());
  for (const py::buffer_info& info : infos) parts.push_back(bytes_of(info));
  chain.add(step, loss, parts);
}

using StateTuple = std::tuple<int, bool, uint64_t, uint64_t>;

StateTuple state_of(const IntegrityChain& chain) {
  const IntegrityChain::State state = chain.state();
  return {state.bits, state.lanes, state.value, state.records};
}

void restore(IntegrityChain& chain, const StateTuple& state) {
  const auto& [bits, lanes, value, records] = state;
  chain.restore({bits, lanes, value, records});
}

uint64_t fnv1a_of(const py::buffer& buffer, int bits) {
  check<std::invalid_argument>(bits == 32 || bits == 64, "bits: expected 32 or 64, got ", bits);
  const py::buffer_info info = buffer.request();
  const IntegrityChain::Part bytes = bytes_of(info);
  return bits == 32 ? fnv1a(Fnv<uint32_t>::kBasis, bytes) : fnv1a(Fnv<uint64_t>::kBasis, bytes);
}

uint32_t digest_of(const py::buffer& buffer) {
  const py::buffer_info info = buffer.request();
  const IntegrityChain::Part bytes = bytes_of(info);
  return kernels::fnv_lanes_digest(bytes.data(), static_cast<int64_t>(bytes.size()));
}

}  // namespace

void bind_evidence(py::module_& m) {
  m.def("fnv1a", &fnv1a_of, py::arg("data"), py::arg("bits"));
  m.def("fnv_lanes_digest", &digest_of, py::arg("data"));
  py::class_<IntegrityChain>(m, "IntegrityChain")
      .def(py::init<int, bool>(), py::arg("bits"), py::arg("lanes"))
      .def("add", &add, py::arg("step"), py::arg("loss"), py::arg("parts"))
      .def("state", &state_of)
      .def("restore", &restore, py::arg("state"));
}

}  // namespace aegis
