// CUDA as plain C++: with this, the text of a kernel compiles without nvcc and runs on the
// executor.
//
// Kernels do not name this file; they include kernels/cuda/simt.cuh, where the rules for kernels
// stand. What is missing here is missing on purpose (__activemask, inline PTX) or was not needed so
// far; a new intrinsic goes into the header of its kind in shim/ and is tested in
// test_intrinsics.cpp against its definition in the CUDA programming guide.
#pragma once

#include <type_traits>

#include "simt/executor.h"
#include "simt/shim/atomics.h"
#include "simt/shim/integer.h"
#include "simt/shim/math.h"
#include "simt/shim/memory.h"
#include "simt/shim/vector_types.h"
#include "simt/shim/warp.h"
#include "simt/thread_ops.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__

inline const uint3& threadIdx = aegis::simt::thread_index;
inline const uint3& blockIdx = aegis::simt::block_index;
inline const dim3& blockDim = aegis::simt::block_size;
inline const dim3& gridDim = aegis::simt::grid_size;
constexpr int warpSize = 32;

inline void __trap(aegis::simt::Where where = aegis::simt::Where::current()) {
  aegis::simt::trap(where);
}

#define AEGIS_SHARED(T, name, ...)                                               \
  using aegis_type_of_##name = T __VA_ARGS__;                                    \
  static_assert(std::is_trivially_default_constructible_v<aegis_type_of_##name>, \
                "shared memory holds garbage: no constructors");                 \
  static char aegis_site_of_##name;                                              \
  auto& name = *static_cast<aegis_type_of_##name*>(aegis::simt::shared_variable( \
      &aegis_site_of_##name, #name, sizeof(aegis_type_of_##name),                \
      sizeof(std::remove_all_extents_t<aegis_type_of_##name>),                   \
      alignof(aegis_type_of_##name) > 16 ? alignof(aegis_type_of_##name) : 16))

#define AEGIS_DYNAMIC_SHARED(T, name) \
  T* const name = static_cast<T*>(aegis::simt::dynamic_shared(#name, sizeof(T)))
