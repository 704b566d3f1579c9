// A filler that waits until it is let go: stands in for a file system that does not answer.
#include <pybind11/pybind11.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "core/batch_filler.h"

namespace py = pybind11;

class BlockedFiller : public aegis::BatchFiller {
 public:
  const std::vector<aegis::Field>& fields() const override { return fields_; }
  int64_t samples() const override { return 100; }

  void fill(const int64_t* indices, int64_t count, const aegis::FieldPointers& fields) const override {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [&] { return open_; });
    std::memcpy(fields[0], indices, static_cast<size_t>(count) * sizeof *indices);
  }

  void release() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    released_.notify_all();
  }

 private:
  const std::vector<aegis::Field> fields_{{{0, 64}, {}}};  // one int64 a sample: its number
  mutable std::mutex mutex_;
  mutable std::condition_variable released_;
  bool open_ = false;
};

PYBIND11_MODULE(blocked_filler, m) {
  py::module_::import("aegis._C");  // has the base class
  py::class_<BlockedFiller, aegis::BatchFiller, std::shared_ptr<BlockedFiller>>(m, "BlockedFiller")
      .def(py::init<>())
      .def("release", &BlockedFiller::release);
}
