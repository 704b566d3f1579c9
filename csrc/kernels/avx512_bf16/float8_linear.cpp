// E4M3 as bfloat16, which holds every value of it, for the instruction that multiplies and adds
// pairs.
#include "kernels/float8_linear.h"

#include <immintrin.h>

#include "kernels/float8_rows.h"
#include "kernels/skinny_avx512.h"

namespace aegis::kernels::avx512_bf16 {
namespace {

constexpr uint16_t bfloat16_of(int code) {
  if (code == 0x7f) return 0x7fc0;
  if (code >= 8) return static_cast<uint16_t>((code << 4) + (120 << 7));
  if (code == 0) return 0;
  int top = 0;
  while (code >> (top + 1)) ++top;
  return static_cast<uint16_t>((127 - 9 + top) << 7 | (code << (7 - top) & 0x7f));
}

/// The bytes of every positive value.
struct Tables {
  alignas(64) uint8_t low[128], high[128];
  constexpr Tables() : low(), high() {
    for (int code = 0; code < 128; ++code) {
      low[code] = bfloat16_of(code) & 0xff;
      high[code] = bfloat16_of(code) >> 8;
    }
  }
};
constexpr Tables kTables;

struct Lanes : Avx512Sums {
  using Value = uint16_t;
  using Vector = __m512i;
  static constexpr int64_t kWidth = 32, kFloats = 16;
  static constexpr int kTileRows = 4;
  static constexpr bool kDecodesNan = true;

  // Interleaving puts bytes 0 to 7 of every 16 into the first vector, the others into the second.
  static void decode(__m512i codes, Vector* out) {
    const __m512i low =
        _mm512_permutex2var_epi8(table(kTables.low), codes, table(kTables.low + 64));
    const __m512i high =
        _mm512_permutex2var_epi8(table(kTables.high), codes, table(kTables.high + 64));
    constexpr int kHighOrSign = 0xf8;  // a | (b & c)
    const __m512i sign = _mm512_set1_epi8(-128);
    const __m512i signed_high = _mm512_ternarylogic_epi32(high, codes, sign, kHighOrSign);
    out[0] = _mm512_unpacklo_epi8(low, signed_high);
    out[1] = _mm512_unpackhi_epi8(low, signed_high);
  }
  static void decode(const uint8_t* p, Vector* out) { decode(_mm512_loadu_si512(p), out); }
  static void decode(const uint8_t* p, int64_t n, Vector* out) {
    decode(_mm512_maskz_loadu_epi8((__mmask64{1} << n) - 1, p), out);
  }
  static Vector spread(Vector v) { return v; }

  static Vector load(const uint16_t* p) { return _mm512_load_si512(p); }
  static void store(uint16_t* p, Vector v) { _mm512_store_si512(p, v); }
  static Sum add(Sum sum, Vector x, Vector w) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
  }
  static Sum scaled(Sum total, Sum sum, float scale) {
    return _mm512_fmadd_ps(sum, _mm512_set1_ps(scale), total);
  }
  static bool has_nan(const uint8_t*, int64_t) { return false; }

  static float widen_half(Half value) { return _cvtsh_ss(value.bits); }
  static Half narrow_half(float value) { return {_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)}; }

 private:
  static __m512i table(const uint8_t* bytes) { return _mm512_load_si512(bytes); }
};

}  // namespace

void float8_spread(const uint8_t* values, int64_t k, void* row) {
  float8_spread_row<Lanes>(values, k, row);
}

void float8_linear(const Float8Linear& job, int64_t begin, int64_t end) {
  float8_multiply<Lanes>(job, begin, end);
}

}  // namespace aegis::kernels::avx512_bf16
