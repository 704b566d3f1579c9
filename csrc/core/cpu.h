// Which instruction set the kernels use: found once, readable, and lowered by AEGIS_FORCE_ISA.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace aegis {

/// Levels, each containing the ones before it. A kernel takes its best version at or below a level.
enum class Isa { scalar, avx2, avx512, avx512_vnni, avx512_bf16 };

std::string_view name(Isa isa);

/// Every level that this build has kernels for and this CPU and operating system can run, lowest
/// first.
const std::vector<Isa>& available_isas();

/// The level `text` names. Throws std::invalid_argument where it is unknown or cannot run here.
Isa parse_isa(std::string_view text);

/// The level in force: the highest available, or the one AEGIS_FORCE_ISA names. Read once, at the
/// first call. Throws std::invalid_argument (at every call) where AEGIS_FORCE_ISA is unknown or
/// cannot run here.
Isa active_isa();

}  // namespace aegis
