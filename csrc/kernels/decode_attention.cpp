#include "kernels/decode_attention.h"

#include <type_traits>

namespace aegis::kernels {

#define AEGIS_DECLARE(isa)                                                                \
  namespace isa {                                                                         \
  template <class Element>                                                                \
  void attend(const DecodeAttention<Element>&, const AttentionPiece&, float*);            \
  template <class Element>                                                                \
  void combine(const DecodeAttention<Element>&, int64_t, int64_t, const float*, int64_t); \
  }
AEGIS_DECLARE(scalar)
#if AEGIS_X86
AEGIS_DECLARE(avx2)
AEGIS_DECLARE(avx512)
AEGIS_DECLARE(avx512_bf16)  // for BFloat16 alone
#endif
#undef AEGIS_DECLARE

template <class Element>
DecodeAttentionKernel<Element> decode_attention_kernel(Isa isa) {
#if AEGIS_X86
  if constexpr (std::is_same_v<Element, BFloat16>) {
    if (isa >= Isa::avx512_bf16) {
      return {avx512_bf16::attend<Element>, avx512_bf16::combine<Element>};
    }
  }
  if (isa >= Isa::avx512) return {avx512::attend<Element>, avx512::combine<Element>};
  if (isa >= Isa::avx2) return {avx2::attend<Element>, avx2::combine<Element>};
#endif
  (void)isa;
  return {scalar::attend<Element>, scalar::combine<Element>};
}

#define AEGIS_INSTANTIATE(Element) \
  template DecodeAttentionKernel<Element> decode_attention_kernel<Element>(Isa);
AEGIS_DECODE_ATTENTION_TYPES(AEGIS_INSTANTIATE)
#undef AEGIS_INSTANTIATE

}  // namespace aegis::kernels
