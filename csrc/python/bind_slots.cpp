// Slots for batches that Python makes: lanes and their leases, and the memory shared with workers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

#include "core/copy_rows.h"
#include "core/device_pins.h"
#include "core/shared_file.h"
#include "core/slot_lane.h"
#include "python/bind.h"
#include "python/dlpack.h"

namespace aegis {
namespace {

namespace py = pybind11;
using Release = py::call_guard<py::gil_scoped_release>;

/// A range of a SharedFile in a worker's address space, and the tensors over it there.
struct Window {
  Mapping memory;
};

/// The capsule of a row-major tensor over the first bytes of `data`, which it keeps by `owner`.
template <class Owner>
py::capsule view(std::byte* data, size_t bytes, uint8_t code, uint8_t bits,
                 const std::vector<int64_t>& shape, Owner owner) {
  uint64_t need = bits / 8;
  for (const int64_t extent : shape) {
    check<std::invalid_argument>(extent >= 0, "shape: expected extents of at least 0, got ",
                                 extent);
    check<std::invalid_argument>(!__builtin_mul_overflow(need, extent, &need),
                                 "shape: expected at most 2^64 bytes");
  }
  check<std::invalid_argument>(need <= bytes, "shape: expected at most ", bytes, " bytes, got ",
                               need);
  return dlpack::make_capsule(data, shape, {code, bits}, std::move(owner));
}

py::capsule view_of_slot(const SlotLane::Lease& slot, uint8_t code, uint8_t bits,
                         const std::vector<int64_t>& shape) {
  std::byte* data;
  {
    const py::gil_scoped_release release;  // the first call maps
    data = slot->data();
  }
  return view(data, slot->bytes(), code, bits, shape, slot);
}

/// Addresses, because this side of the library knows no tensors: the caller vouches for them.
void copy_to(uintptr_t out, const std::vector<uintptr_t>& rows, size_t row_bytes) {
  std::vector<const std::byte*> pointers;
  pointers.reserve(rows.size());
  for (const uintptr_t row : rows) pointers.push_back(reinterpret_cast<const std::byte*>(row));
  copy_rows(reinterpret_cast<std::byte*>(out), pointers, row_bytes);
}

/// A lane as Python has it. Leases keep the lane itself, but without this one nobody asks for more.
class PyLane {
 public:
  PyLane(std::shared_ptr<SharedFile> file, std::shared_ptr<DevicePins> pins)
      : lane_(SlotLane::make(std::move(file), std::move(pins))) {}
  ~PyLane() { lane_->rest(); }
  PyLane(const PyLane&) = delete;
  PyLane& operator=(const PyLane&) = delete;

  SlotLane* operator->() const { return lane_.get(); }

 private:
  const std::shared_ptr<SlotLane> lane_;
};

py::dict lane_stats(const PyLane& lane) {
  const SlotLane::Stats stats = lane->stats();
  py::dict out;
  out["slots"] = stats.slots;
  out["held"] = stats.held;
  out["fresh"] = stats.fresh;
  out["slot_bytes"] = stats.slot_bytes;
  out["bytes"] = stats.bytes;
  return out;
}

}  // namespace

void bind_slots(py::module_& m) {
  m.def("copy_rows", &copy_to, py::arg("out"), py::arg("rows"), py::arg("row_bytes"), Release());

  py::class_<Window, std::shared_ptr<Window>>(m, "SharedWindow")
      .def_property_readonly(
          "address", [](const Window& w) { return reinterpret_cast<uintptr_t>(w.memory.data()); })
      .def_property_readonly("nbytes", [](const Window& w) { return w.memory.size(); })
      // By reference: the cast alone adds no owner, so that what is beyond the Python object's own
      // are tensors.
      .def_property_readonly("in_use",
                             [](const py::handle& self) {
                               return py::cast<std::shared_ptr<Window>>(self).use_count() > 2;
                             })
      .def(
          "view",
          [](const std::shared_ptr<Window>& w, uint8_t code, uint8_t bits,
             const std::vector<int64_t>& shape) {
            return view(w->memory.data(), w->memory.size(), code, bits, shape, w);
          },
          py::arg("code"), py::arg("bits"), py::arg("shape"));

  py::class_<SharedFile, std::shared_ptr<SharedFile>>(m, "SharedFile")
      .def(py::init(&SharedFile::create))
      .def_static("attach", &SharedFile::attach, py::arg("fd"))
      .def("fileno", &SharedFile::fd)
      .def("reserve", &SharedFile::reserve, py::arg("nbytes"))
      .def(
          "map",
          [](const SharedFile& self, uint64_t offset, size_t bytes) {
            return std::make_shared<Window>(Window{self.map(offset, bytes)});
          },
          py::arg("offset"), py::arg("nbytes"), Release())
      .def("discard", &SharedFile::discard, py::arg("offset"), py::arg("nbytes"), Release())
      .def_property_readonly("reserved", &SharedFile::reserved)
      .def_property_readonly_static("first", [](const py::object&) { return SharedFile::first(); });

  py::class_<SlotLane::Slot, SlotLane::Lease>(m, "SlotLease")
      .def_property_readonly("offset", &SlotLane::Slot::offset)
      .def_property_readonly("nbytes", &SlotLane::Slot::bytes)
      .def("view", &view_of_slot, py::arg("code"), py::arg("bits"), py::arg("shape"))
      .def(
          "read",
          [](const SlotLane::Slot& slot, uintptr_t address, size_t bytes) {
            slot.read(reinterpret_cast<std::byte*>(address), bytes);
          },
          py::arg("address"), py::arg("nbytes"), Release());

  py::class_<PyLane>(m, "SlotLane")
      .def(py::init<std::shared_ptr<SharedFile>, std::shared_ptr<DevicePins>>(),
           py::arg("file") = nullptr, py::arg("pins") = nullptr)
      .def(
          "note", [](PyLane& lane, size_t bytes) { lane->note(bytes); }, py::arg("nbytes"))
      .def(
          "acquire", [](PyLane& lane, size_t bytes) { return lane->acquire(bytes); },
          py::arg("nbytes"), Release())
      .def("lend", [](PyLane& lane) { return lane->lend(); })
      .def(
          "adopt",
          [](PyLane& lane, uint64_t offset, size_t bytes) { return lane->adopt(offset, bytes); },
          py::arg("offset"), py::arg("nbytes"))
      .def(
          "rest", [](PyLane& lane) { lane->rest(); }, Release())
      .def("stats", &lane_stats)
      .def("ranges", [](PyLane& lane) { return lane->ranges(); });
}

}  // namespace aegis
