// The ring of 64-byte entries. Names and types of their fields are Python's affair.
#include <pybind11/pybind11.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "core/check.h"
#include "core/spsc_ring.h"
#include "python/bind.h"

namespace aegis {
namespace {

namespace py = pybind11;
using Clock = std::chrono::steady_clock;
using Wait = SpscRing::Wait;

constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(50);

std::span<SpscEntry> entries_of(const py::buffer_info& info, const char* name) {
  const bool entries = info.ndim == 1 && info.itemsize == sizeof(SpscEntry);
  check<std::invalid_argument>(entries, name, ": expected one dimension of entries of ",
                               sizeof(SpscEntry), " bytes, got ", info.ndim, " dimensions of ",
                               info.itemsize, " bytes");
  const auto past = reinterpret_cast<uintptr_t>(info.ptr) % alignof(SpscEntry);
  check<std::invalid_argument>((info.size == 0 || info.strides[0] == info.itemsize) && past == 0,
                               name, ": expected adjacent entries at a multiple of ",
                               alignof(SpscEntry), " bytes, got them ", info.strides[0],
                               " bytes apart and ", past, " past one");
  return {static_cast<SpscEntry*>(info.ptr), static_cast<size_t>(info.size)};
}

/// Waits in slices, so that Python's signal handlers run, at most `seconds`.
template <class Ready>
Wait wait_until(double seconds, Ready ready) {
  const Clock::time_point start = Clock::now();
  while (true) {
    const std::chrono::duration<double> left =
        std::chrono::duration<double>(seconds) - (Clock::now() - start);
    Wait result;
    {
      const py::gil_scoped_release release;
      const auto slice =
          left < kSlice ? std::chrono::nanoseconds(int64_t(left.count() * 1e9)) : kSlice;
      result = ready(slice);
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (result != Wait::timeout || !(left > kSlice)) return result;
  }
}

/// How many were pushed: all, unless the wait ended otherwise than `ready`.
std::pair<size_t, Wait> push(SpscRing& ring, const py::buffer& buffer, double seconds) {
  const py::buffer_info info = buffer.request();
  const std::span<const SpscEntry> entries = entries_of(info, "entries");
  ring.be_producer();
  size_t pushed = 0;
  while (true) {
    if (ring.closed()) return {pushed, Wait::closed};
    pushed += ring.try_push(entries.subspan(pushed));
    if (pushed == entries.size()) return {pushed, Wait::ready};
    const Wait end = wait_until(seconds, [&](auto slice) { return ring.wait_room(slice); });
    if (end != Wait::ready) return {pushed, end};
  }
}

/// How many were popped: none only where the wait ended otherwise than `ready`.
std::pair<size_t, Wait> pop(SpscRing& ring, const py::buffer& buffer, double seconds) {
  const py::buffer_info info = buffer.request(true);
  const std::span<SpscEntry> out = entries_of(info, "out");
  ring.be_consumer();
  while (true) {
    const size_t popped = ring.try_pop(out);
    if (popped > 0 || out.empty()) return {popped, Wait::ready};
    const Wait end = wait_until(seconds, [&](auto slice) { return ring.wait_entry(slice); });
    if (end != Wait::ready) return {0, end};
  }
}

}  // namespace

void bind_spsc_ring(py::module_& m) {
  py::class_<SpscRing, std::shared_ptr<SpscRing>> ring(m, "SpscRing");
  py::enum_<Wait>(ring, "Wait")
      .value("ready", Wait::ready)
      .value("closed", Wait::closed)
      .value("gone", Wait::gone)
      .value("timeout", Wait::timeout);
  ring.def_static("create", &SpscRing::create, py::arg("capacity"), py::arg("shared"))
      .def_static("attach", &SpscRing::attach, py::arg("fd"))
      .def_property_readonly("capacity", &SpscRing::capacity)
      .def_property_readonly("closed", &SpscRing::closed)
      .def_property_readonly("fd", &SpscRing::fd)
      .def("__len__", &SpscRing::size)
      .def("close", &SpscRing::close)
      .def("push", &push, py::arg("entries"), py::arg("seconds"))
      .def("pop", &pop, py::arg("out"), py::arg("seconds"));
}

}  // namespace aegis
