// Masks of AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace aegis::kernels {

/// The first `n` < 16 lanes. static: each file compiles a copy of its own.
static inline __mmask16 first_of_16(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

}  // namespace aegis::kernels
