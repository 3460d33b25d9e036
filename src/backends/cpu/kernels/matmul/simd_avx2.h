// AVX2. vpmaddubsw adds pairs of u8 x s8 in int16 with saturation, so a product pair must stay under 2^15:
// codes of up to 6 bits are multiplied as stored; 8-bit codes are made signed and their sign moves to the
// activation (|w| <= 128, |a| <= 127: 2 * 128 * 127 = 32512).
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels/matmul/activation.h"
#include "backends/cpu/kernels/matmul/types/layout.h"

namespace kvasir::cpu::matmul {

#define KVASIR_INLINE [[gnu::always_inline]] static inline

struct Avx2Vector {
  static constexpr int kBytes = 32, kLanes = 8;
  static constexpr int kTileGroups = 1, kTileRows = 4, kFewRows = 1;
  static constexpr int kFloatGroups = 2, kFloatRows = 6;
  static constexpr CodeForm code_form(int offset, int bits) {
    return offset != 0 && bits > 6 ? CodeForm::kSigned : CodeForm::kPlain;
  }

  using Bytes = __m256i;
  using Small = __m128i;  // 8 bytes
  using Ints = __m256i;
  using Floats = __m256;

  KVASIR_INLINE Bytes load(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  KVASIR_INLINE void store(std::byte* p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  template <int n>
  KVASIR_INLINE Bytes shift(Bytes v) {
    if constexpr (n > 0)
      return _mm256_slli_epi16(v, n);
    else if constexpr (n < 0)
      return _mm256_srli_epi16(v, -n);
    else
      return v;
  }
  KVASIR_INLINE Bytes mask(Bytes v, uint8_t m) { return _mm256_and_si256(v, _mm256_set1_epi8(char(m))); }
  KVASIR_INLINE Bytes or_masked(Bytes a, Bytes b, uint8_t m) { return _mm256_or_si256(a, mask(b, m)); }
  KVASIR_INLINE Bytes sub_bytes(Bytes v, uint8_t n) { return _mm256_sub_epi8(v, _mm256_set1_epi8(char(n))); }
  KVASIR_INLINE Bytes lookup(const uint8_t* table, Bytes v) {
    const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(row), v);
  }

  KVASIR_INLINE Small load_small(const std::byte* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  }
  KVASIR_INLINE Small small_mask(Small v, uint8_t m) { return _mm_and_si128(v, _mm_set1_epi8(char(m))); }
  KVASIR_INLINE Small small_or(Small a, Small b) { return _mm_or_si128(a, b); }
  template <int n>
  KVASIR_INLINE Small small_shift(Small v) {
    if constexpr (n > 0)
      return _mm_slli_epi16(v, n);
    else
      return _mm_srli_epi16(v, -n);
  }

  template <class Kind>
  KVASIR_INLINE Ints start(const int32_t* start) {
    if constexpr (Kind::kOffset == 0)
      return _mm256_set1_epi32(kMagicBits);
    else
      return _mm256_set1_epi32(kMagicBits + (*start - kMagicBits) / 128 * Kind::kOffset);
  }
  KVASIR_INLINE Bytes broadcast4(const int8_t* a) {
    int32_t four;
    __builtin_memcpy(&four, a, 4);
    return _mm256_set1_epi32(four);
  }
  template <class Kind>
  KVASIR_INLINE Ints dot(Ints sum, Bytes w, Bytes a) {
    __m256i pairs;
    if constexpr (Kind::kForm == CodeForm::kSigned)
      pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
    else
      pairs = _mm256_maddubs_epi16(w, a);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  KVASIR_INLINE Floats as_floats(Ints v) { return _mm256_castsi256_ps(v); }

  KVASIR_INLINE Floats load_floats(const float* p) { return _mm256_loadu_ps(p); }
  KVASIR_INLINE void store(float* p, Floats v) { _mm256_storeu_ps(p, v); }
  KVASIR_INLINE Floats zero() { return _mm256_setzero_ps(); }
  KVASIR_INLINE Floats set1(float v) { return _mm256_set1_ps(v); }
  KVASIR_INLINE Floats broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  KVASIR_INLINE Floats load_f16(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <bool odd>
  KVASIR_INLINE Floats load_bf16_pair(const std::byte* p) {
    const __m256i v = load(p);
    if constexpr (odd)
      return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(int(0xffff0000u))));
    else
      return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
  }
  KVASIR_INLINE Floats from_u8(Small v) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)); }
  KVASIR_INLINE Floats from_i8(Small v) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)); }
  KVASIR_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  KVASIR_INLINE Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  KVASIR_INLINE Floats negate(Floats a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  KVASIR_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  KVASIR_INLINE void prefetch(const std::byte* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }
  KVASIR_INLINE void prefetch_far(const std::byte* p) {  // into L2
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
  }
};

#undef KVASIR_INLINE

}  // namespace kvasir::cpu::matmul
