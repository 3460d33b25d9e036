// AVX-512 with VNNI. A weight register holds 16 rows x 4 unsigned codes; vpdpbusd sums u8 x s8 exactly in
// int32. Codes of types with an offset are aligned to the top of the byte, so that the offset is 128 for all
// of them.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels/matmul/activation.h"
#include "backends/cpu/kernels/matmul/types/layout.h"

namespace kvasir::cpu::matmul {

#define KVASIR_INLINE [[gnu::always_inline]] static inline

struct Avx512Vector {
  static constexpr int kBytes = 64, kLanes = 16;
  static constexpr int kTileGroups = 2, kTileRows = 7, kFewRows = 6;
  static constexpr int kFloatGroups = 2, kFloatRows = 12;
  static constexpr CodeForm code_form(int offset, int) {
    return offset == 0 ? CodeForm::kPlain : CodeForm::kTop128;
  }

  using Bytes = __m512i;
  using Small = __m128i;
  using Ints = __m512i;
  using Floats = __m512;

  KVASIR_INLINE Bytes load(const std::byte* p) { return _mm512_loadu_si512(p); }
  template <int n>
  KVASIR_INLINE Bytes shift(Bytes v) {
    if constexpr (n > 0)
      return _mm512_slli_epi16(v, n);
    else if constexpr (n < 0)
      return _mm512_srli_epi16(v, -n);
    else
      return v;
  }
  KVASIR_INLINE Bytes mask(Bytes v, uint8_t m) { return _mm512_and_si512(v, _mm512_set1_epi8(char(m))); }
  KVASIR_INLINE Bytes or_masked(Bytes a, Bytes b, uint8_t m) {
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(char(m)), 0xf8);  // a | (b & m)
  }
  KVASIR_INLINE Bytes lookup(const uint8_t* table, Bytes v) {
    const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), v);
  }

  KVASIR_INLINE Small load_small(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
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
    return _mm512_set1_epi32(Kind::kOffset ? *start : kMagicBits);
  }
  KVASIR_INLINE Bytes broadcast4(const int8_t* a) {
    int32_t four;
    __builtin_memcpy(&four, a, 4);
    return _mm512_set1_epi32(four);
  }
  template <class Kind>
  KVASIR_INLINE Ints dot(Ints sum, Bytes w, Bytes a) {
    return _mm512_dpbusd_epi32(sum, w, a);
  }
  KVASIR_INLINE Floats as_floats(Ints v) { return _mm512_castsi512_ps(v); }

  KVASIR_INLINE Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
  KVASIR_INLINE void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
  KVASIR_INLINE void store(std::byte* p, Bytes v) { _mm512_storeu_si512(p, v); }
  KVASIR_INLINE Floats zero() { return _mm512_setzero_ps(); }
  KVASIR_INLINE Floats set1(float v) { return _mm512_set1_ps(v); }
  KVASIR_INLINE Floats broadcast(const float* p) { return _mm512_set1_ps(*p); }
  KVASIR_INLINE Floats load_f16(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  template <bool odd>
  KVASIR_INLINE Floats load_bf16_pair(const std::byte* p) {
    const __m512i v = _mm512_loadu_si512(p);
    if constexpr (odd)
      return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int(0xffff0000u))));
    else
      return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
  }
  KVASIR_INLINE Floats from_u8(Small v) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v)); }
  KVASIR_INLINE Floats from_i8(Small v) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v)); }
  KVASIR_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  KVASIR_INLINE Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  KVASIR_INLINE Floats negate(Floats a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  KVASIR_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  KVASIR_INLINE void prefetch(const std::byte* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }
  KVASIR_INLINE void prefetch_far(const std::byte* p) {  // into L2
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
  }
};

#undef KVASIR_INLINE

}  // namespace kvasir::cpu::matmul
