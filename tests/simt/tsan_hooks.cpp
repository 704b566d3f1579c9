// The entry points of ThreadSanitizer's instrumentation, with the race detector behind them instead
// of its runtime. Linked only into programs compiled with -fsanitize=thread and linked without it.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simt/block.h"
#include "simt/memory.h"
#include "simt/race_detector.h"

namespace {

using aegis::simt::AccessKind;

inline void access(const void* address, size_t bytes, bool whole, AccessKind kind,
                   const void* code) {
  using namespace aegis::simt;
  if (watched.holds(address) && block().running())
    detector().on_access(address, bytes, whole, kind, code);
}

}  // namespace

#define AEGIS_CODE __builtin_return_address(0)
#define AEGIS_ACCESS(bytes)                                       \
  void __tsan_read##bytes(const void* address) {                  \
    access(address, bytes, true, AccessKind::read, AEGIS_CODE);   \
  }                                                               \
  void __tsan_write##bytes(const void* address) {                 \
    access(address, bytes, true, AccessKind::write, AEGIS_CODE);  \
  }                                                               \
  void __tsan_unaligned_read##bytes(const void* address) {        \
    access(address, bytes, false, AccessKind::read, AEGIS_CODE);  \
  }                                                               \
  void __tsan_unaligned_write##bytes(const void* address) {       \
    access(address, bytes, false, AccessKind::write, AEGIS_CODE); \
  }                                                               \
  void __tsan_volatile_read##bytes(const void* address) {         \
    access(address, bytes, true, AccessKind::read, AEGIS_CODE);   \
  }                                                               \
  void __tsan_volatile_write##bytes(const void* address) {        \
    access(address, bytes, true, AccessKind::write, AEGIS_CODE);  \
  }

// Host code of the tests is compiled with the kernels: its C++ atomics come here and stay atomic.
#define AEGIS_FETCH(bits, name, builtin)                                                           \
  uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t* p, uint##bits##_t v, int) { \
    return builtin(p, v, __ATOMIC_SEQ_CST);                                                        \
  }
#define AEGIS_ATOMIC(bits)                                                                         \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* p, int) {               \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile uint##bits##_t* p, uint##bits##_t v, int) {            \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                \
  AEGIS_FETCH(bits, exchange, __atomic_exchange_n)                                                 \
  AEGIS_FETCH(bits, fetch_add, __atomic_fetch_add)                                                 \
  AEGIS_FETCH(bits, fetch_sub, __atomic_fetch_sub)                                                 \
  AEGIS_FETCH(bits, fetch_and, __atomic_fetch_and)                                                 \
  AEGIS_FETCH(bits, fetch_or, __atomic_fetch_or)                                                   \
  AEGIS_FETCH(bits, fetch_xor, __atomic_fetch_xor)                                                 \
  int __tsan_atomic##bits##_compare_exchange_strong(                                               \
      volatile uint##bits##_t* p, uint##bits##_t* expected, uint##bits##_t v, int, int) {          \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(                                                 \
      volatile uint##bits##_t* p, uint##bits##_t* expected, uint##bits##_t v, int, int) {          \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }

extern "C" {

void __tsan_init() { aegis::simt::enable_detector(); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

AEGIS_ACCESS(1)
AEGIS_ACCESS(2)
AEGIS_ACCESS(4)
AEGIS_ACCESS(8)
AEGIS_ACCESS(16)

void __tsan_read_range(const void* address, size_t bytes) {
  access(address, bytes, false, AccessKind::read, AEGIS_CODE);
}
void __tsan_write_range(const void* address, size_t bytes) {
  access(address, bytes, false, AccessKind::write, AEGIS_CODE);
}

// Clang calls these for the library functions; gcc calls the functions themselves, unseen.
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  access(from, bytes, false, AccessKind::read, AEGIS_CODE);
  access(to, bytes, false, AccessKind::write, AEGIS_CODE);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  access(from, bytes, false, AccessKind::read, AEGIS_CODE);
  access(to, bytes, false, AccessKind::write, AEGIS_CODE);
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  access(to, bytes, false, AccessKind::write, AEGIS_CODE);
  return std::memset(to, value, bytes);
}

AEGIS_ATOMIC(8)
AEGIS_ATOMIC(16)
AEGIS_ATOMIC(32)
AEGIS_ATOMIC(64)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

}  // extern "C"
