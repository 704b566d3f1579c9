#include "core/cpu.h"

#include <array>
#include <cstdlib>

#if AEGIS_X86
#include <cpuid.h>
#endif

#include "core/check.h"

namespace aegis {
namespace {

constexpr std::array<std::string_view, 5> kNames{"scalar", "avx2", "avx512", "avx512_vnni",
                                                 "avx512_bf16"};

#if AEGIS_X86
/// The conversions of float16, which not every compiler's __builtin_cpu_supports can name.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

std::vector<Isa> detect() {
  std::vector<Isa> found{Isa::scalar};
#if AEGIS_X86
  // These ask the operating system too (XGETBV): a CPU may have registers that the kernel never
  // saves.
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())) {
    return found;
  }
  found.push_back(Isa::avx2);
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))) {
    return found;
  }
  found.push_back(Isa::avx512);
  if (!__builtin_cpu_supports("avx512vnni")) return found;
  found.push_back(Isa::avx512_vnni);
  if (__builtin_cpu_supports("avx512bf16")) found.push_back(Isa::avx512_bf16);
#endif
  return found;
}

std::string listed() {
  std::string text;
  for (Isa isa : available_isas()) (text += text.empty() ? "" : ", ") += name(isa);
  return text;
}

}  // namespace

std::string_view name(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

const std::vector<Isa>& available_isas() {
  static const std::vector<Isa> isas = detect();
  return isas;
}

Isa parse_isa(std::string_view text) {
  for (Isa isa : available_isas()) {
    if (name(isa) == text) return isa;
  }
  bool known = false;
  for (std::string_view one : kNames) known = known || one == text;
  check<std::invalid_argument>(known, "AEGIS_FORCE_ISA: expected one of ", listed(), ", got '",
                               text, "'");
  throw std::invalid_argument("AEGIS_FORCE_ISA: '" + std::string(text) +
                              "' cannot run on this machine, which has " + listed());
}

Isa active_isa() {
  static const Isa active = [] {
    const char* forced = std::getenv("AEGIS_FORCE_ISA");
    return forced && *forced ? parse_isa(forced) : available_isas().back();
  }();
  return active;
}

}  // namespace aegis
