// CUDA's vector types, with CUDA's sizes and alignments.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define AEGIS_SIMT_VECTOR_1(name, T, align) \
  struct alignas(align) name {              \
    T x;                                    \
  };                                        \
  constexpr name make_##name(T x) { return {x}; }
#define AEGIS_SIMT_VECTOR_2(name, T, align) \
  struct alignas(align) name {              \
    T x, y;                                 \
  };                                        \
  constexpr name make_##name(T x, T y) { return {x, y}; }
#define AEGIS_SIMT_VECTOR_3(name, T, align) \
  struct alignas(align) name {              \
    T x, y, z;                              \
  };                                        \
  constexpr name make_##name(T x, T y, T z) { return {x, y, z}; }
#define AEGIS_SIMT_VECTOR_4(name, T, align) \
  struct alignas(align) name {              \
    T x, y, z, w;                           \
  };                                        \
  constexpr name make_##name(T x, T y, T z, T w) { return {x, y, z, w}; }
#define AEGIS_SIMT_PAIR(name, T, bytes)  \
  AEGIS_SIMT_VECTOR_1(name##1, T, bytes) \
  AEGIS_SIMT_VECTOR_2(name##2, T, 2 * bytes)
#define AEGIS_SIMT_VECTORS(name, T, bytes) \
  AEGIS_SIMT_PAIR(name, T, bytes)          \
  AEGIS_SIMT_VECTOR_4(name##4, T, 4 * bytes)

AEGIS_SIMT_VECTORS(char, signed char, 1)
AEGIS_SIMT_VECTORS(uchar, unsigned char, 1)
AEGIS_SIMT_VECTORS(short, short, 2)
AEGIS_SIMT_VECTORS(ushort, unsigned short, 2)
AEGIS_SIMT_VECTORS(int, int, 4)
AEGIS_SIMT_VECTORS(uint, unsigned, 4)
AEGIS_SIMT_VECTORS(float, float, 4)
// Four of 8 bytes: deprecated in CUDA 13, whose new names say the alignment; not here.
AEGIS_SIMT_PAIR(longlong, long long, 8)
AEGIS_SIMT_PAIR(ulonglong, unsigned long long, 8)
AEGIS_SIMT_PAIR(double, double, 8)

AEGIS_SIMT_VECTOR_3(char3, signed char, 1)
AEGIS_SIMT_VECTOR_3(uchar3, unsigned char, 1)
AEGIS_SIMT_VECTOR_3(short3, short, 2)
AEGIS_SIMT_VECTOR_3(ushort3, unsigned short, 2)
AEGIS_SIMT_VECTOR_3(int3, int, 4)
AEGIS_SIMT_VECTOR_3(float3, float, 4)
AEGIS_SIMT_VECTOR_3(double3, double, 8)
constexpr uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

#undef AEGIS_SIMT_VECTORS
#undef AEGIS_SIMT_PAIR
#undef AEGIS_SIMT_VECTOR_1
#undef AEGIS_SIMT_VECTOR_2
#undef AEGIS_SIMT_VECTOR_3
#undef AEGIS_SIMT_VECTOR_4
