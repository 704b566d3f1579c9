// run_script OPERATORS MODULE TENSORS: runs a saved TorchScript module that uses torch.ops.aegis, without Python.
#include <dlfcn.h>
#include <torch/script.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 4 || dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s\n", argc == 4 ? dlerror() : "usage: run_script OPERATORS MODULE TENSORS");
    return 2;
  }
  torch::jit::Module module = torch::jit::load(argv[2]), tensors = torch::jit::load(argv[3]);
  const torch::Tensor got =
      module.forward({tensors.attr("arena"), tensors.attr("offsets")}).toTensor();
  std::puts(torch::equal(got, tensors.attr("expected").toTensor()) ? "equal" : "different");
  return 0;
}
