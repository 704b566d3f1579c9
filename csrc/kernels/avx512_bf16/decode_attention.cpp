#include "kernels/decode_attention.h"

#include <immintrin.h>

#include "kernels/attention_avx512.h"
#include "kernels/decode_pieces.h"

namespace aegis::kernels::avx512_bf16 {
namespace {

// The instruction serves query·key alone: for the values, weights would have to be rounded to
// bfloat16 first.
struct Lanes : Avx512BFloat16 {
  using Dots = __m512bh;
  static Dots dots(const BFloat16* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static Dots dots(const BFloat16* p, int64_t n) {
    return (__m512bh)_mm512_maskz_loadu_epi16((1u << n) - 1, p);
  }
  static Floats dot(Floats sum, Dots query, Dots key) { return _mm512_dpbf16_ps(sum, query, key); }
};

}  // namespace

template <class Element>
void attend(const DecodeAttention<Element>& job, const AttentionPiece& piece, float* parts) {
  attend_piece<Lanes>(job, piece, parts);
}
template void attend(const DecodeAttention<BFloat16>&, const AttentionPiece&, float*);

template <class Element>
void combine(const DecodeAttention<Element>& job, int64_t batch_row, int64_t key_head,
             const float* parts, int64_t count) {
  combine_pieces<Lanes>(job, batch_row, key_head, parts, count);
}
template void combine(const DecodeAttention<BFloat16>&, int64_t, int64_t, const float*, int64_t);

}  // namespace aegis::kernels::avx512_bf16
