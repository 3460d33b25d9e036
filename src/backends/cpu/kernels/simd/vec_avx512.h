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
  static F fused(F a, F b, F c) { return fma(a, b, c); }  // rounded once on every ISA
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
  static I bit_xor(I a, I b) { return _mm512_xor_si512(a, b); }
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

  static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  template <int n>
  static I shift_right(I a) {  // 32-bit lanes
    return _mm512_maskz_srli_epi32(kAll, a, n);
  }
  static I to_int(F x) { return _mm512_maskz_cvtps_epi32(kAll, x); }  // nearest, ties to even
  static int32_t reduce_iadd(I x) { return _mm512_reduce_add_epi32(x); }
  // The low byte of each lane.
  static void store_u8(uint8_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(kAll, x));
  }
  static void store_u16(uint16_t* p, I x) {  // the low 16 bits of each lane
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(kAll, x));
  }

  // Bytes of levels: a code's low kBits bits index a table of 16 entries of period 2^kBits; what lies above
  // them is ignored. Levels come biased by kLevelBias, as dot8 wants them.
  static constexpr int kLevelBias = 128;
  using Table = __m512i;
  static Table load_table(const int8_t* levels) {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
    return _mm512_xor_si512(_mm512_maskz_broadcast_i32x4(kAll, sixteen), _mm512_set1_epi8(char(0x80)));
  }
  static I lookup(Table table, I codes) { return _mm512_maskz_permutexvar_epi8(~0ull, codes, table); }
  // Bits of `mask` (of each byte) from a, the others from b.
  static I select_bits(uint8_t mask, I a, I b) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(char(mask)), a, b, 0xca);
  }
  // acc + sums over the four bytes of each lane of (level + kLevelBias) * word, words in -127 .. 127.
  static I dot8(I acc, I levels, I words) { return _mm512_dpbusd_epi32(acc, levels, words); }
  // acc + sums over the four bytes of each lane of level * word. Words: weights in 0 .. 254 less kWeightBias,
  // as bytes.
  static constexpr int kWeightBias = 0;
  static I dot_weights(I acc, I levels, I words) { return _mm512_dpbusd_epi32(acc, words, levels); }
  static Table load_signed_table(const int8_t* levels) {  // without kLevelBias
    return _mm512_maskz_broadcast_i32x4(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels)));
  }

  // 16-bit levels, 16 of period 2^kBits: the low bits of every even byte of `codes` index them into the
  // halves of `even`, those of every odd byte into `odd`; what lies above is ignored.
  using WideTable = __m512i;
  static WideTable load_wide_table(const int16_t* levels) {
    return _mm512_maskz_broadcast_i64x4(0xff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(levels)));
  }
  static void lookup_wide(WideTable table, I codes, I& even, I& odd) {
    even = _mm512_maskz_permutexvar_epi16(~0u, codes, table);
    odd = _mm512_maskz_permutexvar_epi16(~0u, _mm512_maskz_srli_epi16(~0u, codes, 8), table);
  }
  // Lanes of `now` moved k on, the last of `before` first.
  template <int k>
  static I lanes_before(I now, I before) {
    return _mm512_maskz_alignr_epi32(kAll, now, before, 16 - k);
  }
  // Bytes of `on` where bit `bit` of the byte of `bits` is set, else of `off`.
  template <int bit>
  static I by_bit(I bits, I off, I on) {
    return _mm512_mask_blend_epi8(_mm512_test_epi8_mask(bits, _mm512_set1_epi8(char(1 << bit))), off, on);
  }
  // Low bytes of the halves of `even` and `odd`, in turn.
  static I join_bytes(I even, I odd) {
    return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, even, _mm512_maskz_slli_epi16(~0u, odd, 8));
  }

  static F sqrt(F a) { return _mm512_maskz_sqrt_ps(kAll, a); }
  static I count_less(I count, F x, F y) {  // count + (x < y)
    return _mm512_mask_add_epi32(count, _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), count, iset1(1));
  }
  static F lookup16(const float* table, I index) {  // table[index], 0 <= index < 16
    return _mm512_maskz_permutexvar_ps(kAll, index, load(table));
  }
  static F flip(F x, F signs) { return _mm512_xor_ps(x, signs); }
  // Lanes i and i ^ kDistance to their sum (in the lower) and difference, lower minus upper.
  template <int kDistance>
  static F butterfly(F x) {
    static constexpr uint32_t kOn = 0x80000000u;
    const auto sign = [](int lane) { return int(lane & kDistance ? kOn : 0); };
    const I upper =
        _mm512_setr_epi32(sign(0), sign(1), sign(2), sign(3), sign(4), sign(5), sign(6), sign(7), sign(8),
                          sign(9), sign(10), sign(11), sign(12), sign(13), sign(14), sign(15));
    F other;
    if constexpr (kDistance == 1)
      other = _mm512_maskz_permute_ps(kAll, x, 0xb1);
    else if constexpr (kDistance == 2)
      other = _mm512_maskz_permute_ps(kAll, x, 0x4e);
    else
      other = _mm512_maskz_shuffle_f32x4(kAll, x, x, kDistance == 4 ? 0xb1 : 0x4e);
    return _mm512_add_ps(other, _mm512_xor_ps(x, _mm512_castsi512_ps(upper)));
  }

 private:
  static __m256 low(F x) { return _mm512_castps512_ps256(x); }
  static __m256 high(F x) { return _mm512_maskz_extractf32x8_ps(0xff, x, 1); }
  static __mmask16 below(int n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : __mmask16((1u << n) - 1); }
};

}  // namespace kvasir::cpu::avx512
