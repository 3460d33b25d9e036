// NEON with the dot product extension: s8 x s8, four at a time, in int32. Codes with an offset are made
// signed.
#pragma once
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels/matmul/activation.h"
#include "backends/cpu/kernels/matmul/types/layout.h"

namespace kvasir::cpu::matmul {

#define KVASIR_INLINE [[gnu::always_inline]] static inline

struct NeonVector {
  static constexpr int kBytes = 16, kLanes = 4;
  static constexpr int kTileGroups = 4, kTileRows = 3, kFewRows = 1;
  static constexpr int kFloatGroups = 4, kFloatRows = 6;
  static constexpr CodeForm code_form(int offset, int) {
    return offset == 0 ? CodeForm::kPlain : CodeForm::kSigned;
  }

  using Bytes = uint8x16_t;
  using Small = uint8x8_t;  // 4 bytes
  using Ints = int32x4_t;
  using Floats = float32x4_t;

  KVASIR_INLINE Bytes load(const std::byte* p) { return vld1q_u8(reinterpret_cast<const uint8_t*>(p)); }
  KVASIR_INLINE void store(std::byte* p, Bytes v) { vst1q_u8(reinterpret_cast<uint8_t*>(p), v); }
  template <int n>
  KVASIR_INLINE Bytes shift(Bytes v) {
    if constexpr (n > 0)
      return vshlq_n_u8(v, n);
    else if constexpr (n < 0)
      return vshrq_n_u8(v, -n);
    else
      return v;
  }
  KVASIR_INLINE Bytes mask(Bytes v, uint8_t m) { return vandq_u8(v, vdupq_n_u8(m)); }
  KVASIR_INLINE Bytes or_masked(Bytes a, Bytes b, uint8_t m) { return vorrq_u8(a, mask(b, m)); }
  KVASIR_INLINE Bytes sub_bytes(Bytes v, uint8_t n) { return vsubq_u8(v, vdupq_n_u8(n)); }
  KVASIR_INLINE Bytes lookup(const uint8_t* table, Bytes v) { return vqtbl1q_u8(vld1q_u8(table), v); }

  KVASIR_INLINE Small load_small(const std::byte* p) {
    uint32_t four;
    __builtin_memcpy(&four, p, 4);
    return vreinterpret_u8_u32(vdup_n_u32(four));
  }
  KVASIR_INLINE Small small_mask(Small v, uint8_t m) { return vand_u8(v, vdup_n_u8(m)); }
  KVASIR_INLINE Small small_or(Small a, Small b) { return vorr_u8(a, b); }
  template <int n>
  KVASIR_INLINE Small small_shift(Small v) {
    if constexpr (n > 0)
      return vshl_n_u8(v, n);
    else
      return vshr_n_u8(v, -n);
  }

  template <class Kind>
  KVASIR_INLINE Ints start(const int32_t*) {
    static_assert(Kind::kOffset == 0);
    return vdupq_n_s32(kMagicBits);
  }
  KVASIR_INLINE Bytes broadcast4(const int8_t* a) {
    int32_t four;
    __builtin_memcpy(&four, a, 4);
    return vreinterpretq_u8_s32(vdupq_n_s32(four));
  }
  template <class Kind>
  KVASIR_INLINE Ints dot(Ints sum, Bytes w, Bytes a) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(a));
  }
  KVASIR_INLINE Floats as_floats(Ints v) { return vreinterpretq_f32_s32(v); }

  KVASIR_INLINE Floats load_floats(const float* p) { return vld1q_f32(p); }
  KVASIR_INLINE void store(float* p, Floats v) { vst1q_f32(p, v); }
  KVASIR_INLINE Floats zero() { return vdupq_n_f32(0); }
  KVASIR_INLINE Floats set1(float v) { return vdupq_n_f32(v); }
  KVASIR_INLINE Floats broadcast(const float* p) { return vld1q_dup_f32(p); }
  KVASIR_INLINE Floats load_f16(const std::byte* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
  }
  template <bool odd>
  KVASIR_INLINE Floats load_bf16_pair(const std::byte* p) {
    const uint32x4_t v = vld1q_u32(reinterpret_cast<const uint32_t*>(p));
    if constexpr (odd)
      return vreinterpretq_f32_u32(vandq_u32(v, vdupq_n_u32(0xffff0000u)));
    else
      return vreinterpretq_f32_u32(vshlq_n_u32(v, 16));
  }
  KVASIR_INLINE Floats from_u8(Small v) { return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(v)))); }
  KVASIR_INLINE Floats from_i8(Small v) {
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(v)))));
  }
  KVASIR_INLINE Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
  KVASIR_INLINE Floats sub(Floats a, Floats b) { return vsubq_f32(a, b); }
  KVASIR_INLINE Floats negate(Floats a) { return vnegq_f32(a); }
  KVASIR_INLINE Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  KVASIR_INLINE void prefetch(const std::byte* p) { __builtin_prefetch(p); }
  KVASIR_INLINE void prefetch_far(const std::byte* p) { __builtin_prefetch(p, 0, 2); }
};

#undef KVASIR_INLINE

}  // namespace kvasir::cpu::matmul
