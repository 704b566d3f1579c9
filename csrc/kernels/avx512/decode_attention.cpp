#include "kernels/decode_attention.h"

#include <immintrin.h>

#include "kernels/attention_avx512.h"
#include "kernels/decode_pieces.h"
#include "kernels/mask_avx512.h"

namespace aegis::kernels::avx512 {
namespace {

template <class E>
struct Lanes;

template <>
struct Lanes<float> : Avx512Floats {
  using Element = float;
  using Dots = __m512;
  static constexpr int64_t kWidth = 16;
  static constexpr int kVectors = 1;
  static Dots dots(const float* p) { return _mm512_loadu_ps(p); }
  static Dots dots(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_of_16(n), p); }
  static Floats dot(Floats sum, Dots query, Dots key) { return fma(query, key, sum); }
  static void widen(const float* p, Floats* out) { out[0] = dots(p); }
  static void widen(const float* p, int64_t n, Floats* out) { out[0] = dots(p, n); }
  static void narrow(const Floats* in, float* p) { store(p, in[0]); }
  static void narrow(const Floats* in, float* p, int64_t n) {
    _mm512_mask_storeu_ps(p, first_of_16(n), in[0]);
  }
};

template <>
struct Lanes<Half> : Avx512Floats {
  using Element = Half;
  using Dots = __m512;
  static constexpr int64_t kWidth = 16;
  static constexpr int kVectors = 1;
  static Dots dots(const Half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
  static Dots dots(const Half* p, int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_of_16(n), p));
  }
  static Floats dot(Floats sum, Dots query, Dots key) { return fma(query, key, sum); }
  static void widen(const Half* p, Floats* out) { out[0] = dots(p); }
  static void widen(const Half* p, int64_t n, Floats* out) { out[0] = dots(p, n); }
  static void narrow(const Floats* in, Half* p) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(in[0], _MM_FROUND_TO_NEAREST_INT));
  }
  static void narrow(const Floats* in, Half* p, int64_t n) {
    _mm256_mask_storeu_epi16(p, first_of_16(n), _mm512_cvtps_ph(in[0], _MM_FROUND_TO_NEAREST_INT));
  }
};

template <>
struct Lanes<BFloat16> : Avx512BFloat16 {
  struct Dots {
    Floats halves[2];
  };
  static Dots dots(const BFloat16* p) {
    Dots d;
    widen(p, d.halves);
    return d;
  }
  static Dots dots(const BFloat16* p, int64_t n) {
    Dots d;
    widen(p, n, d.halves);
    return d;
  }
  static Floats dot(Floats sum, const Dots& query, const Dots& key) {
    return fma(query.halves[1], key.halves[1], fma(query.halves[0], key.halves[0], sum));
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

}  // namespace aegis::kernels::avx512
