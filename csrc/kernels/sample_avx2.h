// The lanes of AVX2, for sample_lanes.h.
#pragma once

#include <immintrin.h>

#include "kernels/sample_lanes.h"

namespace aegis::kernels::avx2 {
namespace {  // of each file that includes it

struct Operations {
  struct Floats {
    __m256 low, high;
  };
  using Mask = Floats;  // all bits of a lane, or none
  static Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Floats load_floats(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Floats largest(Floats a, Floats b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
  }
  static Floats smallest(Floats a, Floats b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
  }
  template <int kRelation>
  static Mask compare(Floats a, Floats b) {
    return {_mm256_cmp_ps(a.low, b.low, kRelation), _mm256_cmp_ps(a.high, b.high, kRelation)};
  }
  static Mask above(Floats a, Floats b) { return compare<_CMP_GT_OQ>(a, b); }
  static Mask equal(Floats a, Floats b) { return compare<_CMP_EQ_OQ>(a, b); }
  static Mask at_least(Floats a, Floats b) { return compare<_CMP_GE_OQ>(a, b); }
  static Mask unordered(Floats a, Floats b) { return compare<_CMP_UNORD_Q>(a, b); }
  static Mask either(Mask a, Mask b) {
    return {_mm256_or_ps(a.low, b.low), _mm256_or_ps(a.high, b.high)};
  }
  static Mask both(Mask a, Mask b) {
    return {_mm256_and_ps(a.low, b.low), _mm256_and_ps(a.high, b.high)};
  }
  static uint32_t bits(Mask mask) {
    return static_cast<uint32_t>(_mm256_movemask_ps(mask.low) | _mm256_movemask_ps(mask.high) << 8);
  }
  static Floats keep(Mask mask, Floats a) { return both(mask, a); }
  static Floats add(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Floats subtract(Floats a, Floats b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  static Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static __m256 raise(__m256 a, __m256 r) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(r), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent));
  }
  static Floats raise(Floats a, Floats r) { return {raise(a.low, r.low), raise(a.high, r.high)}; }
  static float fold(Floats a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static void store(float* p, Floats a) {
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
  }
};

template <class E>
struct Whole;

template <>
struct Whole<float> : Operations {
  static float lowest() { return kLowest; }
  static Floats load(const float* p) { return load_floats(p); }
};

template <>
struct Whole<Half> : Operations {
  static Half lowest() { return {0xfc00}; }
  static Floats load(const Half* p) {
    const auto* eights = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(eights)), _mm256_cvtph_ps(_mm_loadu_si128(eights + 1))};
  }
};

template <>
struct Whole<BFloat16> : Operations {
  static BFloat16 lowest() { return {0xff80}; }
  static __m256 widen(__m128i p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(p), 16));
  }
  static Floats load(const BFloat16* p) {
    const auto* eights = reinterpret_cast<const __m128i*>(p);
    return {widen(_mm_loadu_si128(eights)), widen(_mm_loadu_si128(eights + 1))};
  }
};

template <class E>
struct Lanes : Whole<E> {
  using Element = E;
  using Whole<E>::load;
  static typename Whole<E>::Floats load(const E* p, int64_t n) {
    E copy[kSampleLanes];
    for (int64_t i = 0; i < kSampleLanes; ++i) copy[i] = i < n ? p[i] : Whole<E>::lowest();
    return load(copy);
  }
};

}  // namespace
}  // namespace aegis::kernels::avx2
