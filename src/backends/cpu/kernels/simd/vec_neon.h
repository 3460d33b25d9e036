// Float vectors of aarch64; see vec_avx512.h. Include it only from *_neon.cpp files.
#pragma once
#include <arm_neon.h>

#include <cstdint>

#include "backends/cpu/kernels/simd/half_types.h"

namespace kvasir::cpu::neon {

struct Vec {
  using F = float32x4_t;
  static constexpr int kN = 4;
  static constexpr int kTileRows = 6;

  static F zero() { return vdupq_n_f32(0); }
  static F set1(float x) { return vdupq_n_f32(x); }
  static F load(const float* p) { return vld1q_f32(p); }
  static F load(const F16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))); }
  static F load(const BF16* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16)); }
  static void store(float* p, F x) { vst1q_f32(p, x); }
  static void store(F16* p, F x) { vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F max(F a, F b) { return vmaxq_f32(a, b); }
  static F abs(F a) { return vabsq_f32(a); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F fused(F a, F b, F c) { return fma(a, b, c); }  // rounded once on every ISA
  static F round(F a) { return vrndnq_f32(a); }
  static F scale2(F a, F n) {
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
  }
  static F if_less(F x, F y, F then, F otherwise) { return vbslq_f32(vcltq_f32(x, y), then, otherwise); }
  static F keep(F x, int lo, int hi, F fill) {
    const int32x4_t lane = lanes();
    const uint32x4_t inside = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(lo)), vcltq_s32(lane, vdupq_n_s32(hi)));
    return vbslq_f32(inside, x, fill);
  }
  static float reduce_max(F x) { return vmaxvq_f32(x); }
  static float reduce_add(F x) {
    const float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
  }

  using I = int32x4_t;
  static I izero() { return vdupq_n_s32(0); }
  static I iset1(int32_t x) { return vdupq_n_s32(x); }
  static I iload(const void* p) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p))); }
  static I load_s8_wide16(const void* p) {
    return vreinterpretq_s32_s16(vmovl_s8(vld1_s8(static_cast<const int8_t*>(p))));
  }
  static I load_u8_wide16(const void* p) {
    return vreinterpretq_s32_u16(vmovl_u8(vld1_u8(static_cast<const uint8_t*>(p))));
  }
  static I bit_and(I a, I b) { return vandq_s32(a, b); }
  static I bit_or(I a, I b) { return vorrq_s32(a, b); }
  static I bit_xor(I a, I b) { return veorq_s32(a, b); }
  static I sub16(I a, I b) {
    return vreinterpretq_s32_s16(vsubq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
  }
  template <int n>
  static I shift_left32(I a) {
    return vshlq_n_s32(a, n);
  }
  static I shift_right32(I a, int n) { return right(a, vdupq_n_s32(n)); }
  static I shift_right_lanes(I a, int first) { return right(a, vaddq_s32(lanes(), vdupq_n_s32(first))); }
  // The two halves of a register apart, so that a pair is added once at the end.
  struct Dot {
    int32x4_t low, high;
  };
  static Dot dot_zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  static Dot dot16(Dot acc, I a, I b) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return {vmlal_s16(acc.low, vget_low_s16(x), vget_low_s16(y)), vmlal_high_s16(acc.high, x, y)};
  }
  static I dot_sum(Dot acc) { return vpaddq_s32(acc.low, acc.high); }
  static I mul_round15(I a, I b) {
    return vreinterpretq_s32_s16(vqrdmulhq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
  }
  static void istore(void* p, I x) { vst1q_u8(static_cast<uint8_t*>(p), vreinterpretq_u8_s32(x)); }
  static void store_s16(int16_t* p, F x) { vst1_s16(p, vqmovn_s32(vcvtnq_s32_f32(x))); }
  static F to_float(I a) { return vcvtq_f32_s32(a); }

  static I iadd(I a, I b) { return vaddq_s32(a, b); }
  template <int n>
  static I shift_right(I a) {
    if constexpr (n == 0)
      return a;
    else
      return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), n));
  }
  static I to_int(F x) { return vcvtnq_s32_f32(x); }
  static int32_t reduce_iadd(I x) { return vaddvq_s32(x); }
  static void store_u8(uint8_t* p, I x) {
    const uint16x4_t narrow = vmovn_u32(vreinterpretq_u32_s32(x));
    const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(narrow, narrow))), 0);
    __builtin_memcpy(p, &four, sizeof(four));
  }
  static void store_u16(uint16_t* p, I x) { vst1_u16(p, vmovn_u32(vreinterpretq_u32_s32(x))); }

  static constexpr int kLevelBias = 0;
  using Table = int8x16_t;
  static Table load_table(const int8_t* levels) { return vld1q_s8(levels); }
  static I lookup(Table table, I codes) {
    return vreinterpretq_s32_s8(vqtbl1q_s8(table, vandq_u8(vreinterpretq_u8_s32(codes), vdupq_n_u8(15))));
  }
  static I select_bits(uint8_t mask, I a, I b) {
    return vreinterpretq_s32_u8(vbslq_u8(vdupq_n_u8(mask), vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b)));
  }
  static I dot8(I acc, I levels, I words) {
    return vdotq_s32(acc, vreinterpretq_s8_s32(levels), vreinterpretq_s8_s32(words));
  }
  static constexpr int kWeightBias = 127;
  static I dot_weights(I acc, I levels, I words) { return dot8(acc, levels, words); }
  static Table load_signed_table(const int8_t* levels) { return load_table(levels); }

  struct WideTable {
    uint8x16_t low, high;  // bytes of the levels
  };
  static WideTable load_wide_table(const int16_t* levels) {
    const uint8x16x2_t bytes = vld2q_u8(reinterpret_cast<const uint8_t*>(levels));
    return {bytes.val[0], bytes.val[1]};
  }
  static void lookup_wide(const WideTable& table, I codes, I& even, I& odd) {
    const uint8x16_t index = vandq_u8(vreinterpretq_u8_s32(codes), vdupq_n_u8(15));
    const uint8x16_t low = vqtbl1q_u8(table.low, index), high = vqtbl1q_u8(table.high, index);
    even = vreinterpretq_s32_u8(vtrn1q_u8(low, high));
    odd = vreinterpretq_s32_u8(vtrn2q_u8(low, high));
  }
  // Lanes of `now` moved k on, the last of `before` first.
  template <int k>
  static I lanes_before(I now, I before) {
    return vextq_s32(before, now, 4 - k);
  }
  // A table of 128 bytes, for indices below 128, or of 256.
  template <int size>
  struct ByteTable {
    uint8x16x4_t part[size / 64];
    void load(const uint8_t* bytes) {
      for (int i = 0; i < size / 64; ++i) part[i] = vld1q_u8_x4(bytes + 64 * i);
    }
    I lookup(I index) const {
      uint8x16_t at = vreinterpretq_u8_s32(index);
      uint8x16_t out = vqtbl4q_u8(part[0], at);
      for (int i = 1; i < size / 64; ++i) {
        at = vsubq_u8(at, vdupq_n_u8(64));
        out = vqtbx4q_u8(out, part[i], at);  // an index out of the part keeps what there is
      }
      return vreinterpretq_s32_u8(out);
    }
  };
  template <int bit>
  static I by_bit(I bits, I off, I on) {
    const uint8x16_t where = vtstq_u8(vreinterpretq_u8_s32(bits), vdupq_n_u8(1 << bit));
    return vreinterpretq_s32_u8(vbslq_u8(where, vreinterpretq_u8_s32(on), vreinterpretq_u8_s32(off)));
  }
  static I join_bytes(I even, I odd) {
    return vreinterpretq_s32_u8(vtrn1q_u8(vreinterpretq_u8_s32(even), vreinterpretq_u8_s32(odd)));
  }

  static F sqrt(F a) { return vsqrtq_f32(a); }
  static I count_less(I count, F x, F y) { return vsubq_s32(count, vreinterpretq_s32_u32(vcltq_f32(x, y))); }
  static F lookup16(const float* table, I index) {
    const uint8x16x4_t bytes = vld1q_u8_x4(reinterpret_cast<const uint8_t*>(table));
    // Bytes 4 i .. 4 i + 3 of lane i's entry.
    const uint32x4_t at = vmlaq_n_u32(vdupq_n_u32(0x03020100), vreinterpretq_u32_s32(index), 0x04040404);
    return vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(at)));
  }
  static F flip(F x, F signs) {
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), vreinterpretq_u32_f32(signs)));
  }
  template <int kDistance>
  static F butterfly(F x) {
    static_assert(kDistance == 1 || kDistance == 2);
    static constexpr float kUpper[4] = {0, kDistance == 1 ? -0.0f : 0, kDistance == 2 ? -0.0f : 0, -0.0f};
    const F other = kDistance == 1 ? vrev64q_f32(x) : vextq_f32(x, x, 2);
    return vaddq_f32(other, flip(x, vld1q_f32(kUpper)));
  }

 private:
  static I lanes() {
    static constexpr int32_t kLanes[4] = {0, 1, 2, 3};
    return vld1q_s32(kLanes);
  }
  static I right(I a, I n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vnegq_s32(n)));
  }
};

}  // namespace kvasir::cpu::neon
