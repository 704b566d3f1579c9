#include "kernels/decode_attention.h"

#include <immintrin.h>

#include "kernels/decode_pieces.h"
#include "kernels/tail_avx2.h"

namespace aegis::kernels::avx2 {
namespace {

struct Arithmetic {
  using Floats = __m256;
  static constexpr int64_t kFloats = 8;
  static constexpr int kQueries = 2;
  static Floats all(float value) { return _mm256_set1_ps(value); }
  static float first(Floats v) { return _mm256_cvtss_f32(v); }
  static Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Floats v) { _mm256_storeu_ps(p, v); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  static Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static float largest(Floats v) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }
  static float total(Floats v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }
  static void totals(const Floats* sums, float* out) {
    const __m256 low = _mm256_hadd_ps(sums[0], sums[1]), high = _mm256_hadd_ps(sums[2], sums[3]);
    const __m256 four = _mm256_hadd_ps(low, high);  // of each half
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1)));
  }
  static Floats round(Floats v) {
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Floats power(Floats v) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static Floats below(Floats v, Floats limit, Floats a, Floats b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(v, limit, _CMP_LT_OQ));
  }
  static Floats absolute(Floats v) { return _mm256_andnot_ps(all(-0.0f), v); }
  static Floats signed_as(Floats v, Floats sign) {
    return _mm256_or_ps(v, _mm256_and_ps(sign, all(-0.0f)));
  }
};

template <class E>
struct Whole;  // vectors

template <>
struct Whole<float> : Arithmetic {
  using Dots = __m256;
  static constexpr int64_t kWidth = 8;
  static constexpr int kVectors = 1;
  static Dots dots(const float* p) { return load(p); }
  static Floats dot(Floats sum, Dots query, Dots key) { return fma(query, key, sum); }
  static void widen(const float* p, Floats* out) { out[0] = load(p); }
  static void narrow(const Floats* in, float* p) { store(p, in[0]); }
};

template <>
struct Whole<Half> : Arithmetic {
  using Dots = __m256;
  static constexpr int64_t kWidth = 8;
  static constexpr int kVectors = 1;
  static Dots dots(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
  static Floats dot(Floats sum, Dots query, Dots key) { return fma(query, key, sum); }
  static void widen(const Half* p, Floats* out) { out[0] = dots(p); }
  static void narrow(const Floats* in, Half* p) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(in[0], _MM_FROUND_TO_NEAREST_INT));
  }
};

/// Elements in pairs: those at even places in one vector, those at odd places in another.
template <>
struct Whole<BFloat16> : Arithmetic {
  struct Dots {
    Floats halves[2];
  };
  static constexpr int64_t kWidth = 16;
  static constexpr int kVectors = 2;
  static Dots dots(const BFloat16* p) {
    Dots d;
    widen(p, d.halves);
    return d;
  }
  static Floats dot(Floats sum, const Dots& query, const Dots& key) {
    return fma(query.halves[1], key.halves[1], fma(query.halves[0], key.halves[0], sum));
  }
  static void widen(const BFloat16* p, Floats* out) {
    const __m256i both = _mm256_loadu_si256((const __m256i*)p);
    out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    out[1] = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536)));
  }
  static void narrow(const Floats* in, BFloat16* p) {
    _mm256_storeu_si256((__m256i*)p, _mm256_blend_epi16(_mm256_srli_epi32(rounded(in[0]), 16),
                                                        rounded(in[1]), 0xaa));
  }

 private:
  /// The upper halves are the numbers in bfloat16.
  static __m256i rounded(Floats v) {
    const __m256i word = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const Floats nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff0000));
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(sum), nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  }
};

template <class E>
struct Lanes : Whole<E> {
  using Element = E;
  using Base = Whole<E>;
  using End = Tail<E, Base::kWidth>;
  using Base::dots;
  using Base::narrow;
  using Base::widen;
  static typename Base::Dots dots(const E* p, int64_t n) { return dots(End(p, n).elements); }
  static void widen(const E* p, int64_t n, __m256* out) { widen(End(p, n).elements, out); }
  static void narrow(const __m256* in, E* p, int64_t n) {
    End end;
    narrow(in, end.elements);
    end.give(p, n);
  }
};

}  // namespace

template <class Element>
void attend(const DecodeAttention<Element>& job, const AttentionPiece& piece, float* parts) {
  attend_piece<Lanes<Element>>(job, piece, parts);
}

template <class Element>
void combine(const DecodeAttention<Element>& job, int64_t batch_row, int64_t key_head,
             const float* parts, int64_t count) {
  combine_pieces<Lanes<Element>>(job, batch_row, key_head, parts, count);
}

#define AEGIS_INSTANTIATE(Element)                                                      \
  template void attend(const DecodeAttention<Element>&, const AttentionPiece&, float*); \
  template void combine(const DecodeAttention<Element>&, int64_t, int64_t, const float*, int64_t);
AEGIS_DECODE_ATTENTION_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels::avx2
