#include "ops/cuda/stream.h"

#include <dlfcn.h>

#include "core/check.h"

namespace aegis::ops {
namespace {

using GetStream = int32_t (*)(int32_t device_index, void** stream);

GetStream find_get_stream() {
  void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<GetStream>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
}

}  // namespace

CUstream_st* current_stream(int32_t device_index) {
  static const GetStream get_stream = find_get_stream();
  check<std::runtime_error>(
      get_stream != nullptr,
      "aegis: expected a CUDA build of torch, got one without libtorch_cuda.so");
  void* stream = nullptr;
  check<std::runtime_error>(get_stream(device_index, &stream) == 0,
                            "aegis: torch has no current stream for device ", device_index);
  return static_cast<CUstream_st*>(stream);
}

}  // namespace aegis::ops
