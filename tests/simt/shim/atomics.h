// Atomics for the types that CUDA has them for; relaxed, as CUDA's are.
#pragma once

#include "simt/thread_ops.h"

namespace aegis::simt {

/// Replaces *address by update(*address) and returns what was there. Not instrumented: the race
/// detector hears of one atomic access instead of a read and a write.
template <class T, class Update>
__attribute__((no_sanitize("thread"))) T atomic_update(T* address, Update update) {
  atomic_access(address, sizeof(T));
  const T old = *address;
  *address = update(old);
  return old;
}

}  // namespace aegis::simt

#define AEGIS_SIMT_ATOMIC(name, T, expression)                                              \
  inline T name(T* address, T value) {                                                      \
    return aegis::simt::atomic_update(address, [value](T old) -> T { return expression; }); \
  }
#define AEGIS_SIMT_ATOMIC_INTEGERS(name, expression) \
  AEGIS_SIMT_ATOMIC(name, int, expression)           \
  AEGIS_SIMT_ATOMIC(name, unsigned, expression)      \
  AEGIS_SIMT_ATOMIC(name, unsigned long long, expression)

// Sums of signed integers wrap, as on the GPU.
AEGIS_SIMT_ATOMIC(atomicAdd, int, static_cast<int>(unsigned(old) + unsigned(value)))
AEGIS_SIMT_ATOMIC(atomicAdd, unsigned, old + value)
AEGIS_SIMT_ATOMIC(atomicAdd, unsigned long long, old + value)
AEGIS_SIMT_ATOMIC(atomicAdd, float, old + value)
AEGIS_SIMT_ATOMIC(atomicAdd, double, old + value)
AEGIS_SIMT_ATOMIC(atomicSub, int, static_cast<int>(unsigned(old) - unsigned(value)))
AEGIS_SIMT_ATOMIC(atomicSub, unsigned, old - value)
AEGIS_SIMT_ATOMIC_INTEGERS(atomicMax, old < value ? value : old)
AEGIS_SIMT_ATOMIC(atomicMax, long long, old < value ? value : old)
AEGIS_SIMT_ATOMIC_INTEGERS(atomicMin, value < old ? value : old)
AEGIS_SIMT_ATOMIC(atomicMin, long long, value < old ? value : old)
AEGIS_SIMT_ATOMIC_INTEGERS(atomicAnd, old& value)
AEGIS_SIMT_ATOMIC_INTEGERS(atomicOr, old | value)
AEGIS_SIMT_ATOMIC_INTEGERS(atomicXor, old ^ value)
AEGIS_SIMT_ATOMIC_INTEGERS(atomicExch, ((void)old, value))
AEGIS_SIMT_ATOMIC(atomicExch, float, ((void)old, value))
AEGIS_SIMT_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
AEGIS_SIMT_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)

#define AEGIS_SIMT_CAS(T)                                                                         \
  inline T atomicCAS(T* address, T expected, T value) {                                           \
    return aegis::simt::atomic_update(address,                                                    \
                                      [=](T old) -> T { return old == expected ? value : old; }); \
  }
AEGIS_SIMT_CAS(int)
AEGIS_SIMT_CAS(unsigned)
AEGIS_SIMT_CAS(unsigned long long)
AEGIS_SIMT_CAS(unsigned short)

#undef AEGIS_SIMT_CAS
#undef AEGIS_SIMT_ATOMIC_INTEGERS
#undef AEGIS_SIMT_ATOMIC

inline void __threadfence() { aegis::simt::fence(); }
inline void __threadfence_system() { aegis::simt::fence(); }
inline void __threadfence_block() {}  // orders nothing that the race detector looks at
