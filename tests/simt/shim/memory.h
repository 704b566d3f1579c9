// Loads and stores with cache hints: here, plain ones.
#pragma once

#define AEGIS_SIMT_LOAD(name) \
  template <class T>          \
  T name(const T* address) {  \
    return *address;          \
  }
AEGIS_SIMT_LOAD(__ldg)
AEGIS_SIMT_LOAD(__ldca)
AEGIS_SIMT_LOAD(__ldcg)
AEGIS_SIMT_LOAD(__ldcs)
AEGIS_SIMT_LOAD(__ldlu)
#undef AEGIS_SIMT_LOAD

#define AEGIS_SIMT_STORE(name)     \
  template <class T>               \
  void name(T* address, T value) { \
    *address = value;              \
  }
AEGIS_SIMT_STORE(__stwb)
AEGIS_SIMT_STORE(__stcg)
AEGIS_SIMT_STORE(__stcs)
AEGIS_SIMT_STORE(__stwt)
#undef AEGIS_SIMT_STORE
