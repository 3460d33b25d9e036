// Float vectors of AVX2 with FMA and F16C; see vec_avx512.h. Include it only from *_avx2.cpp files.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "backends/cpu/kernels/simd/half_types.h"

namespace kvasir::cpu::avx2 {

struct Vec {
  using F = __m256;
  static constexpr int kN = 8;
  static constexpr int kTileRows = 4;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const F16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F load(const BF16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void store(F16* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fused(F a, F b, F c) { return fma(a, b, c); }  // rounded once on every ISA
  static F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale2(F a, F n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  static F if_less(F x, F y, F then, F otherwise) {
    return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
  }
  static F keep(F x, int lo, int hi, F fill) {
    const __m256i lane = lanes();
    const __m256i below = _mm256_cmpgt_epi32(iset1(hi), lane), before = _mm256_cmpgt_epi32(iset1(lo), lane);
    return _mm256_blendv_ps(fill, x, _mm256_castsi256_ps(_mm256_andnot_si256(before, below)));
  }
  static float reduce_max(F x) {
    const __m128 z = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 w = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)));
  }
  static float reduce_add(F x) {
    const __m128 z = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 w = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
  }

  using I = __m256i;
  static I izero() { return _mm256_setzero_si256(); }
  static I iset1(int32_t x) { return _mm256_set1_epi32(x); }
  static I iload(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static I load_s8_wide16(const void* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static I load_u8_wide16(const void* p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
  static I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
  static I bit_xor(I a, I b) { return _mm256_xor_si256(a, b); }
  static I sub16(I a, I b) { return _mm256_sub_epi16(a, b); }
  template <int n>
  static I shift_left32(I a) {
    return _mm256_slli_epi32(a, n);
  }
  static I shift_right32(I a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
  static I shift_right_lanes(I a, int first) {
    return _mm256_srlv_epi32(a, _mm256_add_epi32(lanes(), iset1(first)));
  }
  using Dot = __m256i;
  static Dot dot_zero() { return _mm256_setzero_si256(); }
  static Dot dot16(Dot acc, I a, I b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }
  static I dot_sum(Dot acc) { return acc; }
  static I mul_round15(I a, I b) { return _mm256_mulhrs_epi16(a, b); }
  static void istore(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static void store_s16(int16_t* p, F x) {
    const __m256i wide = _mm256_cvtps_epi32(x);
    const __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow);
  }
  static F to_float(I a) { return _mm256_cvtepi32_ps(a); }

  static I iadd(I a, I b) { return _mm256_add_epi32(a, b); }
  template <int n>
  static I shift_right(I a) {
    return _mm256_srli_epi32(a, n);
  }
  static I to_int(F x) { return _mm256_cvtps_epi32(x); }
  static int32_t reduce_iadd(I x) {
    const __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i z = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(z, _mm_shuffle_epi32(z, 0xb1)));
  }
  static void store_u8(uint8_t* p, I x) {
    const __m256i low = _mm256_shuffle_epi8(x, _mm256_set1_epi32(0x0c080400));
    const __m128i y = _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), y);
  }
  static void store_u16(uint16_t* p, I x) {
    const __m256i low = _mm256_shuffle_epi8(x, _mm256_set1_epi64x(0x0d0c090805040100));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(low, 0x08)));
  }

  static constexpr int kLevelBias = 0;
  using Table = __m256i;
  static Table load_table(const int8_t* levels) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels)));
  }
  static I lookup(Table table, I codes) {
    return _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
  }
  static I select_bits(uint8_t mask, I a, I b) {
    const I m = _mm256_set1_epi8(char(mask));
    return _mm256_or_si256(_mm256_and_si256(m, a), _mm256_andnot_si256(m, b));
  }
  // No pair of products leaves 16 bits: 2 * 127 * 127 < 32768.
  static I dot8(I acc, I levels, I words) {
    return add_pairs(acc, _mm256_maddubs_epi16(_mm256_abs_epi8(levels), _mm256_sign_epi8(words, levels)));
  }
  static constexpr int kWeightBias = 127;
  static I dot_weights(I acc, I levels, I words) { return dot8(acc, levels, words); }
  static Table load_signed_table(const int8_t* levels) { return load_table(levels); }

  struct WideTable {
    __m256i low, high;  // bytes of the levels
  };
  static WideTable load_wide_table(const int16_t* levels) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels)),
                  b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels + 8)),
                  mask = _mm_set1_epi16(0xff);
    const __m128i low = _mm_packus_epi16(_mm_and_si128(a, mask), _mm_and_si128(b, mask)),
                  high = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
    return {_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high)};
  }
  static void lookup_wide(const WideTable& table, I codes, I& even, I& odd) {
    const I index = _mm256_and_si256(codes, _mm256_set1_epi8(15)), mask = _mm256_set1_epi16(0xff);
    const I low = _mm256_shuffle_epi8(table.low, index), high = _mm256_shuffle_epi8(table.high, index);
    even = _mm256_or_si256(_mm256_and_si256(low, mask), _mm256_slli_epi16(high, 8));
    odd = _mm256_or_si256(_mm256_srli_epi16(low, 8), _mm256_andnot_si256(mask, high));
  }
  // Lanes of `now` moved k on, the last of `before` first.
  template <int k>
  static I lanes_before(I now, I before) {
    return _mm256_alignr_epi8(now, _mm256_permute2x128_si256(before, now, 0x21), 16 - 4 * k);
  }
  // A table of 128 bytes, for indices below 128, or of 256. A shuffle gives 0 for negative bytes: entry i of
  // `step` is what the bytes of 16 .. change where an index reaches 16 i.
  template <int size>
  struct ByteTable {
    __m256i step[size / 16];
    void load(const uint8_t* bytes) {
      for (int i = 0; i < size / 16; ++i) {
        const __m128i* p = reinterpret_cast<const __m128i*>(bytes) + i;
        const __m128i row = _mm_loadu_si128(p);
        step[i] = _mm256_broadcastsi128_si256(i % 8 ? _mm_xor_si128(row, _mm_loadu_si128(p - 1)) : row);
      }
    }
    static I lookup128(const __m256i* step, I index) {
      I out = _mm256_shuffle_epi8(step[0], index);
      for (int i = 1; i < 8; ++i) {
        index = _mm256_subs_epi8(index, _mm256_set1_epi8(16));
        out = _mm256_xor_si256(out, _mm256_shuffle_epi8(step[i], index));
      }
      return out;
    }
    I lookup(I index) const {
      const I out = lookup128(step, index);
      if constexpr (size == 128) return out;
      const I upper = _mm256_xor_si256(index, _mm256_set1_epi8(char(0x80)));
      return _mm256_xor_si256(out, lookup128(step + size / 16 - 8, upper));
    }
  };
  template <int bit>
  static I by_bit(I bits, I off, I on) {
    const I mask = _mm256_set1_epi8(char(1 << bit));
    return _mm256_blendv_epi8(off, on, _mm256_cmpeq_epi8(_mm256_and_si256(bits, mask), mask));
  }
  static I join_bytes(I even, I odd) {
    return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(0xff)), _mm256_slli_epi16(odd, 8));
  }

  static F sqrt(F a) { return _mm256_sqrt_ps(a); }
  static I count_less(I count, F x, F y) {
    return _mm256_sub_epi32(count, _mm256_castps_si256(_mm256_cmp_ps(x, y, _CMP_LT_OQ)));
  }
  static F lookup16(const float* table, I index) {
    const F low = _mm256_permutevar8x32_ps(load(table), index),
            high = _mm256_permutevar8x32_ps(load(table + 8), index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
  }
  static F flip(F x, F signs) { return _mm256_xor_ps(x, signs); }
  template <int kDistance>
  static F butterfly(F x) {
    constexpr auto sign = [](int lane) { return lane & kDistance ? -0.0f : 0.0f; };
    const F upper = _mm256_setr_ps(sign(0), sign(1), sign(2), sign(3), sign(4), sign(5), sign(6), sign(7));
    F other;
    if constexpr (kDistance == 4)
      other = _mm256_permute2f128_ps(x, x, 1);
    else
      other = _mm256_permute_ps(x, kDistance == 1 ? 0xb1 : 0x4e);
    return _mm256_add_ps(other, _mm256_xor_ps(x, upper));
  }

 private:
  static I lanes() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static I add_pairs(I acc, I pairs) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

}  // namespace kvasir::cpu::avx2
