// Checksums over training runs.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "core/background_chain.h"
#include "core/check.h"
#include "core/fnv.h"
#include "core/integrity_chain.h"
#include "kernels/fnv_lanes.h"
#include "python/bind.h"

namespace aegis {
namespace {

namespace py = pybind11;

IntegrityChain::Part bytes_of(const py::buffer_info& info, const char* name) {
  py::ssize_t step = info.itemsize;
  for (py::ssize_t d = info.ndim - 1; d >= 0; --d) {
    check<std::invalid_argument>(info.shape[d] == 1 || info.strides[d] == step, name,
                                 ": expected contiguous memory, got stride ", info.strides[d],
                                 " in dimension ", d, ", not ", step);
    step *= info.shape[d];
  }
  return {static_cast<const std::byte*>(info.ptr),
          static_cast<size_t>(info.size) * static_cast<size_t>(info.itemsize)};
}

/// Contiguous memory of Python objects, held while this lives.
struct Buffers {
  explicit Buffers(const std::vector<py::buffer>& buffers) {
    for (const py::buffer& buffer : buffers) infos.push_back(buffer.request());
    for (const py::buffer_info& info : infos) parts.push_back(bytes_of(info, "parts"));
  }
  std::vector<py::buffer_info> infos;
  std::vector<IntegrityChain::Part> parts;
};

void add(IntegrityChain& chain, int64_t step, double loss, const std::vector<py::buffer>& buffers) {
  chain.add(step, loss, Buffers(buffers).parts);
}

using StateTuple = std::tuple<int, bool, uint64_t, uint64_t>;

StateTuple tuple_of(const IntegrityChain::State& state) {
  return {state.bits, state.lanes, state.value, state.records};
}

IntegrityChain::State state_of(const StateTuple& tuple) {
  const auto& [bits, lanes, value, records] = tuple;
  return {bits, lanes, value, records};
}

/// A chain with a thread, which needs no GIL: waits let go of it, and notice signals.
class PyBackgroundChain {
 public:
  PyBackgroundChain(int bits, bool lanes)
      : chain_(std::make_unique<BackgroundChain>(bits, lanes)) {}

  ~PyBackgroundChain() {
    const py::gil_scoped_release release;  // joins the thread
    chain_.reset();
  }

  void add(int64_t step, double loss, const std::vector<py::buffer>& buffers) {
    const Buffers memory(buffers);
    wait([this] { return chain_->wait_room(kSlice); });
    const py::gil_scoped_release release;
    chain_->add(step, loss, memory.parts);
  }

  StateTuple state() {
    wait([this] { return chain_->wait_idle(kSlice); });
    const py::gil_scoped_release release;
    return tuple_of(chain_->state());
  }

  void restore(const StateTuple& state) {
    wait([this] { return chain_->wait_idle(kSlice); });
    const py::gil_scoped_release release;
    chain_->restore(state_of(state));
  }

  void close() {
    const py::gil_scoped_release release;
    chain_->close();
  }

 private:
  static constexpr auto kSlice = std::chrono::milliseconds(50);  // between two looks for signals

  template <class Ready>
  static void wait(Ready ready) {
    bool done = false;
    while (!done) {
      {
        const py::gil_scoped_release release;
        done = ready();
      }
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }

  std::unique_ptr<BackgroundChain> chain_;
};

uint64_t fnv1a_of(const py::buffer& buffer, int bits) {
  check<std::invalid_argument>(bits == 32 || bits == 64, "bits: expected 32 or 64, got ", bits);
  const py::buffer_info info = buffer.request();
  const IntegrityChain::Part bytes = bytes_of(info, "data");
  return bits == 32 ? fnv1a(Fnv<uint32_t>::kBasis, bytes) : fnv1a(Fnv<uint64_t>::kBasis, bytes);
}

uint32_t digest_of(const py::buffer& buffer) {
  const py::buffer_info info = buffer.request();
  const IntegrityChain::Part bytes = bytes_of(info, "data");
  return kernels::fnv_lanes_digest(bytes.data(), static_cast<int64_t>(bytes.size()));
}

}  // namespace

void bind_evidence(py::module_& m) {
  m.def("fnv1a", &fnv1a_of, py::arg("data"), py::arg("bits"));
  m.def("fnv_lanes_digest", &digest_of, py::arg("data"));
  py::class_<IntegrityChain>(m, "IntegrityChain")
      .def(py::init<int, bool>(), py::arg("bits"), py::arg("lanes"))
      .def("add", &add, py::arg("step"), py::arg("loss"), py::arg("parts"))
      .def("state", [](const IntegrityChain& chain) { return tuple_of(chain.state()); })
      .def(
          "restore",
          [](IntegrityChain& chain, const StateTuple& state) { chain.restore(state_of(state)); },
          py::arg("state"));
  py::class_<PyBackgroundChain>(m, "BackgroundChain")
      .def(py::init<int, bool>(), py::arg("bits"), py::arg("lanes"))
      .def("add", &PyBackgroundChain::add, py::arg("step"), py::arg("loss"), py::arg("parts"))
      .def("state", &PyBackgroundChain::state)
      .def("restore", &PyBackgroundChain::restore, py::arg("state"))
      .def("close", &PyBackgroundChain::close);
}

}  // namespace aegis
