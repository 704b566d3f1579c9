// Slot pools, schedules and feeders. The consumer's side of a feeder is Python; waits let go of the
// GIL and notice signals.
#include <pybind11/gil_safe_call_once.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cmath>
#include <sstream>
#include <tuple>
#include <vector>

#include "core/check.h"
#include "core/device_pins.h"
#include "core/feeder.h"
#include "core/token_filler.h"
#include "python/bind.h"
#include "python/dlpack.h"

namespace aegis {
namespace {

namespace py = pybind11;
using Clock = std::chrono::steady_clock;

constexpr auto kSlice = std::chrono::milliseconds(50);  // between two looks for signals

/// Whether a data set must take `index` for a number. Much that can be turned into one (True, a
/// tensor of one element) means something else to tensors.
bool is_number(PyObject* index) {
  if (PyLong_Check(index)) return !PyBool_Check(index);
  // Not a plain static: who waits for that one holds the GIL, which the import may let go of.
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> numpy_integer;
  const auto import = [] { return py::object(py::module_::import("numpy").attr("integer")); };
  const py::object& integer = numpy_integer.call_once_and_store_result(import).get_stored();
  return PyObject_IsInstance(index, integer.ptr()) == 1;
}

[[noreturn]] void refuse_indices(const std::string& got) {
  throw py::type_error("indices: expected ints, in a list or a 1-D array, got " + got);
}

void read_list(py::handle indices, std::vector<int64_t>& out) {
  // Looking at an item may run code of its own, which may change the list.
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(indices.ptr()); ++i) {
    const auto item =
        py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(indices.ptr(), i));
    if (!is_number(item.ptr())) refuse_indices(py::repr(item));
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(item.ptr()));
    if (!index) throw py::error_already_set();
    const int64_t value = PyLong_AsLongLong(index.ptr());
    if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    out.push_back(value);
  }
}

/// Sample numbers from a list or tuple of ints (what samplers give) or from an array of a type that
/// int64 holds. Throws py::type_error for anything else and where there are none, and what Python
/// raises for an int beyond 64 bits.
std::vector<int64_t>& read_indices(py::handle indices, std::vector<int64_t>& out) {
  out.clear();
  if (PyList_CheckExact(indices.ptr()) || PyTuple_CheckExact(indices.ptr())) {
    read_list(indices, out);
  } else if (py::isinstance<py::array>(indices)) {
    const auto given = py::reinterpret_borrow<py::array>(indices);
    const py::dtype dtype = given.dtype();
    const bool fits = dtype.kind() == 'i' || (dtype.kind() == 'u' && dtype.itemsize() < 8);
    if (!fits || given.ndim() != 1) refuse_indices(py::repr(indices));
    const auto array = py::array_t<int64_t, py::array::c_style>::ensure(indices);
    if (!array) throw py::error_already_set();
    out.assign(array.data(), array.data() + array.size());
  } else {
    refuse_indices(py::str(py::type::of(indices)));
  }
  if (out.empty()) refuse_indices("none");
  return out;
}

/// A feeder and what Python needs beside it.
class PyFeeder {
 public:
  /// `from_dlpack` turns a capsule into a tensor. With `reuse`, tensors do not hold their slot: a
  /// batch's memory is written again after the next next().
  PyFeeder(std::shared_ptr<const BatchFiller> filler, std::shared_ptr<SlotPool> pool, int threads,
           int depth, py::object from_dlpack, bool reuse)
      : feeder_(std::make_unique<Feeder>(std::move(filler), std::move(pool),
                                         FeederOptions{threads, depth})),
        from_dlpack_(std::move(from_dlpack)),
        reuse_(reuse) {}

  ~PyFeeder() {
    const py::gil_scoped_release release;  // joins threads
    feeder_.reset();
  }

  void submit(py::handle indices) {
    const Turn turn(*this);
    read_indices(indices, indices_);
    feeder_->submit(indices_.data(), static_cast<int64_t>(indices_.size()));
  }

  void submit_into(py::handle indices, const std::vector<uintptr_t>& addresses) {
    if (addresses.size() != feeder_->filler().fields().size()) {
      throw py::value_error("addresses: expected one for each of " +
                            std::to_string(feeder_->filler().fields().size()) + " fields, got " +
                            std::to_string(addresses.size()));
    }
    const Turn turn(*this);
    FieldPointers memory{};
    for (size_t f = 0; f < addresses.size(); ++f)
      memory[f] = reinterpret_cast<std::byte*>(addresses[f]);
    read_indices(indices, indices_);
    feeder_->submit(indices_.data(), static_cast<int64_t>(indices_.size()), &memory);
  }

  void follow(const Schedule& schedule) {
    const Turn turn(*this);
    feeder_->follow(schedule);
  }

  /// The next batch as a list of tensors, or None when it went to the caller's memory.
  py::object next(double timeout) {
    const Turn turn(*this);
    if (feeder_->outstanding() == 0) throw py::stop_iteration();
    Batch batch = take(timeout);
    if (!batch.lease) return py::none();
    const std::vector<Field>& fields = feeder_->filler().fields();
    py::list tensors(fields.size());
    for (size_t f = 0; f < fields.size(); ++f) {
      const int64_t elements = feeder_->filler().elements(f, batch.count, batch.fields);
      shape_.assign(1, elements < 0 ? batch.count : elements);
      if (elements < 0)
        shape_.insert(shape_.end(), fields[f].row_shape.begin(), fields[f].row_shape.end());
      const dlpack::DataType dtype{fields[f].type.code, fields[f].type.bits};
      const py::object capsule =
          reuse_ ? dlpack::make_capsule(batch.fields[f], shape_, dtype, batch.lease.memory())
                 : dlpack::make_capsule(batch.fields[f], shape_, dtype, batch.lease);
      PyObject* tensor = PyObject_CallOneArg(from_dlpack_.ptr(), capsule.ptr());
      if (tensor == nullptr) throw py::error_already_set();
      PyList_SET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(f), tensor);
    }
    if (reuse_) last_ = std::move(batch.lease);  // the slot before this one is free again
    return tensors;
  }

  Feeder& feeder() { return *feeder_; }

 private:
  /// A feeder has one consumer at a time, but waits let go of the GIL and run signal handlers.
  class Turn {
   public:
    explicit Turn(PyFeeder& feeder) : feeder_(feeder) {
      if (feeder.in_use_) {
        throw std::runtime_error(
            "this iterator is in use: by another thread, or by what a signal handler interrupted");
      }
      feeder.in_use_ = true;
    }
    ~Turn() { feeder_.in_use_ = false; }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    PyFeeder& feeder_;
  };

  Batch take(double timeout) {
    if (feeder_->options().threads == 0) {
      const py::gil_scoped_release release;
      return feeder_->take();
    }
    if (feeder_->ready()) return feeder_->take();
    const Clock::time_point start = Clock::now();
    while (true) {
      bool ready;
      {
        const py::gil_scoped_release release;
        ready = feeder_->wait_ready(kSlice);
      }
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (ready) return feeder_->take();
      if (timeout > 0 && std::chrono::duration<double>(Clock::now() - start).count() >= timeout) {
        std::ostringstream text;
        text << "DataLoader timed out after " << timeout << " seconds";
        throw std::runtime_error(text.str());
      }
    }
  }

  std::unique_ptr<Feeder> feeder_;
  const py::object from_dlpack_;
  const bool reuse_;
  bool in_use_ = false;  // guarded by the GIL
  SlotLease last_;
  std::vector<int64_t> indices_;
  std::vector<int64_t> shape_;  // of the tensor being made
};

/// (type code, bits, row shape) of each tensor of a batch.
std::vector<std::tuple<int, int, std::vector<int64_t>>> fields_of(const BatchFiller& self) {
  std::vector<std::tuple<int, int, std::vector<int64_t>>> out;
  for (const Field& field : self.fields()) {
    out.emplace_back(field.type.code, field.type.bits, field.row_shape);
  }
  return out;
}

/// Fills one batch here and now; indices that are not of the data set are the caller's error.
void fill_into(const BatchFiller& self, const py::array_t<int64_t, py::array::c_style>& indices,
               const std::vector<uintptr_t>& addresses) {
  if (addresses.size() != self.fields().size()) {
    throw py::value_error("addresses: expected one for each of " +
                          std::to_string(self.fields().size()) + " fields, got " +
                          std::to_string(addresses.size()));
  }
  const int64_t* begin = indices.data();
  const int64_t count = indices.size();
  for (int64_t i = 0; i < count; ++i) {
    const bool inside = 0 <= begin[i] && begin[i] < self.samples();
    if (!inside && !(self.pads() && begin[i] == kPadding)) {
      throw py::index_error("index: expected 0 to " + std::to_string(self.samples() - 1) +
                            ", got " + std::to_string(begin[i]));
    }
  }
  FieldPointers fields{};
  for (size_t f = 0; f < addresses.size(); ++f)
    fields[f] = reinterpret_cast<std::byte*>(addresses[f]);
  const py::gil_scoped_release release;
  self.fill(begin, count, fields);
}

py::dict feeder_stats(PyFeeder& self) {
  const Feeder::Stats stats = self.feeder().stats();
  py::dict out;
  out["batches"] = stats.batches;
  out["samples"] = stats.samples;
  out["ready"] = stats.ready;
  out["waits"] = stats.waits;
  out["wait_seconds"] = static_cast<double>(stats.wait_ns) * 1e-9;
  out["fill_seconds"] = static_cast<double>(stats.fill_ns) * 1e-9;
  out["native_allocations"] = stats.native_allocations;
  return out;
}

Schedule make_schedule(int64_t samples, int64_t batch_size, bool drop_last, int64_t rank,
                       int64_t world_size, int64_t start, std::optional<uint64_t> seed,
                       uint64_t epoch, const std::string& fill,
                       std::shared_ptr<SampleOrder> order) {
  check<std::invalid_argument>(fill == "none" || fill == "pad" || fill == "wrap",
                               "fill: expected none, pad or wrap, got ", fill);
  const ScheduleOptions options{samples,
                                batch_size,
                                drop_last,
                                rank,
                                world_size,
                                start,
                                fill == "pad"    ? Fill::pad
                                : fill == "wrap" ? Fill::wrap
                                                 : Fill::none};
  if (order) return Schedule(options, std::move(order));
  return seed ? Schedule(options, *seed, epoch) : Schedule(options);
}

py::array_t<int64_t> schedule_batch(const Schedule& self, int64_t step) {
  if (step < 0 || step >= self.steps()) {
    throw py::index_error("step: expected 0 to " + std::to_string(self.steps() - 1) + ", got " +
                          std::to_string(step));
  }
  const Schedule::Run run = self.run(step);
  py::array_t<int64_t> samples(run.count);
  int64_t* out = samples.mutable_data();
  for (int64_t i = 0; i < run.count; ++i) out[i] = self.sample(run.begin + i);
  return samples;
}

}  // namespace

void bind_feeder(py::module_& m) {
  m.attr("PADDING") = kPadding;
  py::class_<DevicePins, std::shared_ptr<DevicePins>>(m, "DevicePins")
      .def(py::init(&DevicePins::open), py::arg("device"), py::arg("library") = "libcuda.so.1")
      .def("stats", [](const DevicePins& self) {
        const DevicePins::Stats stats = self.stats();
        py::dict out;
        out["ranges"] = stats.ranges;
        out["bytes"] = stats.bytes;
        out["refused"] = stats.refused;
        return out;
      });

  py::class_<SlotPool, std::shared_ptr<SlotPool>>(m, "SlotPool")
      .def(py::init(&SlotPool::make), py::arg("slot_bytes"), py::arg("warm"),
           py::arg("pins") = nullptr)
      .def_property_readonly("slot_bytes", &SlotPool::slot_bytes)
      .def("stats", [](const SlotPool& self) {
        const SlotPool::Stats stats = self.stats();
        py::dict out;
        out["slots"] = stats.slots;
        out["held"] = stats.held;
        out["fresh"] = stats.fresh;
        return out;
      });

  py::class_<BatchFiller, std::shared_ptr<BatchFiller>>(m, "BatchFiller")
      .def_property_readonly("samples", &BatchFiller::samples)
      .def("verify", &BatchFiller::verify, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("fields", &fields_of)
      .def_property_readonly("pads", &BatchFiller::pads)
      .def("fill_into", &fill_into, py::arg("indices"), py::arg("addresses"))
      .def(
          "batch_bytes",
          [](const BatchFiller& self, int64_t rows) { return lay_out(self.fields(), rows); },
          py::arg("rows"));

  py::class_<TokenFiller, BatchFiller, std::shared_ptr<TokenFiller>>(m, "TokenFiller")
      .def(py::init([](std::shared_ptr<TokenWindows> windows, bool widen) {
             return std::make_shared<TokenFiller>(
                 std::move(windows), widen ? TokenFiller::Form::int64 : TokenFiller::Form::windows);
           }),
           py::arg("windows"), py::kw_only(), py::arg("widen") = true);

  py::class_<SampleOrder, std::shared_ptr<SampleOrder>>(m, "SampleOrder")
      .def_property_readonly("begin", &SampleOrder::begin)
      .def(
          "sample",
          [](const SampleOrder& self, int64_t position) {
            check<std::invalid_argument>(self.begin() <= position, "position: expected at least ",
                                         self.begin(), ", got ", position);
            return self.sample(position);
          },
          py::arg("position"));

  py::class_<Schedule>(m, "Schedule")
      .def(py::init(&make_schedule), py::arg("samples"), py::arg("batch_size"), py::kw_only(),
           py::arg("drop_last") = false, py::arg("rank") = 0, py::arg("world_size") = 1,
           py::arg("start") = 0, py::arg("seed") = py::none(), py::arg("epoch") = 0,
           py::arg("fill") = "none", py::arg("order") = nullptr)
      .def_property_readonly("steps", &Schedule::steps)
      .def_property_readonly("dropped", &Schedule::dropped)
      .def("position_after", &Schedule::position_after, py::arg("step"))
      .def("batch", &schedule_batch, py::arg("step"));

  py::class_<PyFeeder>(m, "Feeder")
      .def(py::init<std::shared_ptr<BatchFiller>, std::shared_ptr<SlotPool>, int, int, py::object,
                    bool>(),
           py::arg("filler"), py::arg("pool"), py::kw_only(), py::arg("threads"), py::arg("depth"),
           py::arg("from_dlpack"), py::arg("reuse") = false)
      .def("submit", &PyFeeder::submit, py::arg("indices"))
      .def("submit_into", &PyFeeder::submit_into, py::arg("indices"), py::arg("addresses"))
      .def("follow", &PyFeeder::follow, py::arg("schedule"))
      .def("next", &PyFeeder::next, py::arg("timeout") = 0.0)
      .def(
          "stop", [](PyFeeder& self) { self.feeder().stop(); },
          py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("taken", [](PyFeeder& self) { return self.feeder().taken(); })
      .def_property_readonly("full", [](PyFeeder& self) { return self.feeder().full(); })
      .def("stats", &feeder_stats);
}

}  // namespace aegis
