// Float vectors of AVX-512. One of the interchangeable Vec types that generic kernel bodies are templates
// over; include it only from *_avx512.cpp files.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "backends/cpu/kernels/simd/half_types.h"

namespace kvasir::cpu::avx512 {

struct Vec {
  using F = __m512;
  static constexpr int kN = 16;        // lanes
  static constexpr int kTileRows = 8;  // rows of a register tile of 2 vectors a row

  // The zero-masked forms with every lane on: the plain ones make gcc 12 warn of its own undefined operand.
  static constexpr __mmask16 kAll = 0xffff;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const F16* p) {
    return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load(const BF16* p) {
    const __m512i wide =
        _mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, wide, 16));
  }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void store(F16* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_maskz_cvtps_ph(kAll, x, _MM_FROUND_TO_NEAREST_INT));
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F max(F a, F b) { return _mm512_maskz_max_ps(kAll, a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
  static F round(F a) {
    return _mm512_maskz_roundscale_ps(kAll, a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F scale2(F a, F n) { return _mm512_maskz_scalef_ps(kAll, a, n); }  // a * 2^n, n whole, in [-126, 0]
  static F if_less(F x, F y, F then, F otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), otherwise, then);
  }
  // Lanes [lo, hi) of x, `fill` elsewhere; lo and hi may lie outside [0, kN].
  static F keep(F x, int lo, int hi, F fill) { return _mm512_mask_blend_ps(below(hi) & ~below(lo), fill, x); }
  static float reduce_max(F x) {
    const __m256 y = _mm256_max_ps(low(x), high(x));
    const __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    const __m128 w = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)));
  }
  static float reduce_add(F x) {
    const __m256 y = _mm256_add_ps(low(x), high(x));
    const __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    const __m128 w = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
  }

  // Integers: kN lanes of 32 bits, or 2 * kN of 16.
  using I = __m512i;
  static I izero() { return _mm512_setzero_si512(); }
  static I iset1(int32_t x) { return _mm512_set1_epi32(x); }
  static I iload(const void* p) { return _mm512_loadu_si512(p); }
  static I load_s8_wide16(const void* p) {
    return _mm512_maskz_cvtepi8_epi16(~0u, _mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static I load_u8_wide16(const void* p) {
    return _mm512_maskz_cvtepu8_epi16(~0u, _mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
  static I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
  static I sub16(I a, I b) { return _mm512_sub_epi16(a, b); }
  template <int n>
  static I shift_left32(I a) {
    return _mm512_maskz_slli_epi32(kAll, a, n);
  }
  static I shift_right32(I a, int n) { return _mm512_maskz_srl_epi32(kAll, a, _mm_cvtsi32_si128(n)); }
  static I shift_right_lanes(I a, int first) {  // lane i by first + i
    const I lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_maskz_srlv_epi32(kAll, a, _mm512_add_epi32(lane, iset1(first)));
  }
  // Sums of a.lo * b.lo + a.hi * b.hi over the 16-bit halves of each lane.
  using Dot = __m512i;
  static Dot dot_zero() { return _mm512_setzero_si512(); }
  static Dot dot16(Dot acc, I a, I b) { return _mm512_dpwssd_epi32(acc, a, b); }
  static I dot_sum(Dot acc) { return acc; }
  // (a * b + 2^14) >> 15 of each 16-bit half.
  static I mul_round15(I a, I b) { return _mm512_mulhrs_epi16(a, b); }
  static void istore(void* p, I x) { _mm512_storeu_si512(p, x); }
  // kN values to the nearest int16, ties to even.
  static void store_s16(int16_t* p, F x) {
    const __m256i narrow = _mm512_maskz_cvtsepi32_epi16(kAll, _mm512_maskz_cvtps_epi32(kAll, x));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow);
  }
  static F to_float(I a) { return _mm512_maskz_cvtepi32_ps(kAll, a); }

 private:
  static __m256 low(F x) { return _mm512_castps512_ps256(x); }
  static __m256 high(F x) { return _mm512_maskz_extractf32x8_ps(0xff, x, 1); }
  static __mmask16 below(int n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : __mmask16((1u << n) - 1); }
};

}  // namespace kvasir::cpu::avx512
