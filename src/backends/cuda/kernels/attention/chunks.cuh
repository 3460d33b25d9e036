// 16 keys by 128 values of a head in shared memory: where their pieces lie, and primitives that read them.
#pragma once
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/mma.cuh"

namespace kvasir::cuda {

inline constexpr int kChunkKeys = 16, kChunkDims = 128;
// Multiplied as bf16, whose range they have: keys and values of both types in one pass only.
constexpr bool wide_form(KvForm form) { return form == KvForm::kBf16 || form == KvForm::kF32; }
// A scale a block of 32 values, and codes that become values by steps, or by a table; as wide types.
constexpr bool step_form(KvForm form) { return form == KvForm::kQ4_0 || form == KvForm::kQ5_0; }
constexpr bool book_form(KvForm form) { return form == KvForm::kTbq3_0 || form == KvForm::kTbq4_0; }
constexpr bool pair_form(KvForm form) { return wide_form(form) || step_form(form) || book_form(form); }
constexpr bool block_scales(KvForm form) {
  return form == KvForm::kQ8_0 || step_form(form) || book_form(form);
}
constexpr bool chunk_form(KvForm form) {
  return form == KvForm::kF16 || form == KvForm::kQ8_0 || form == KvForm::kTbq2H || form == KvForm::kTbq3H ||
         form == KvForm::kTbq4H;
}
// Where piece p of row r lies in its row, so that the lanes that read at once meet no bank twice. Pieces
// never leave their line of 128 bytes: those that do are written one at a time, at 3.2 TB/s of f16 instead
// of 4.6.
template <KvForm F, bool kValues>
__device__ __forceinline__ int piece_place(int r, int p) {
  if constexpr (kValues) {
    if constexpr (F == KvForm::kF16 || F == KvForm::kBf16) return p ^ ((r & 1) | ((r & 2) << 1));
    if constexpr (F == KvForm::kF32) return p ^ (r & 3);
    if constexpr (F == KvForm::kQ8_0) return p ^ ((r & 3) << 1);
    if constexpr (F == KvForm::kTbq4H || F == KvForm::kTbq4_0 || step_form(F)) return p ^ (r & 2);
    if constexpr (F == KvForm::kTbq3Ht) return p ^ (r >> 1 & 1);
  } else {
    if constexpr (F == KvForm::kF16 || F == KvForm::kBf16) return p ^ (p >> 3 & 1) ^ ((r & 1) << 1);
    if constexpr (F == KvForm::kF32) return p ^ (p >> 3) ^ ((r & 1) << 2);
    if constexpr (F == KvForm::kQ8_0) return p ^ (r & 1);
    if constexpr (F == KvForm::kTbq3Ht) return p ^ (r >> 1 & 3);
  }
  return p;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Shared memory by its own addresses: generic ones cost a 64-bit sum a load. In the order written, but those
// of tables, which never change.
__device__ __forceinline__ uint4 load_shared4(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
__device__ __forceinline__ uint2 load_shared2(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
__device__ __forceinline__ uint32_t load_shared(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ __half load_half(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return __ushort_as_half(v);
}
__device__ __forceinline__ uint32_t load_table(uint32_t at) {
  uint32_t v;
  asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
// Pages are read once a step: what else lies in L2 (code, tables, rows of the step) stays.
__device__ __forceinline__ uint64_t leave_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
template <int kBytes>
__device__ __forceinline__ void copy_to(uint32_t to, const void* from, bool valid) {
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0), "l"(leave_first())
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0)
                 : "memory");
}
// c[16][8] += a[16][16] b[16][8], free to move.
__device__ __forceinline__ void product(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The same of bf16.
__device__ __forceinline__ void product_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Two f32 as two bf16 terms each, pair by pair: their upper halves, and what those leave, rounded.
struct Terms {
  uint32_t high, low;
};
__device__ __forceinline__ Terms two_terms(uint32_t x, uint32_t y) {
  const uint32_t high = __byte_perm(x, y, 0x7632);
  return {high, bf16_pair(__uint_as_float(x) - __uint_as_float(x & 0xffff0000u),
                          __uint_as_float(y) - __uint_as_float(y & 0xffff0000u))};
}

// Keeps what is computed from it inside its loop: hoisted for every type at once it would not fit in
// registers.
__device__ __forceinline__ int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Bytes 0 and 2 of `x`, offset by 128, as f16 times an eighth of the scales: a byte times its scale may be
// beyond f16. 0x5800 | q is the f16 128 + q / 8: exact.
inline constexpr float kBytesUnit = 8;
__device__ __forceinline__ uint32_t scaled_bytes(uint32_t x, __half2 scale) {
  const uint32_t biased = (x & 0x00ff00ffu) | 0x58005800u;
  return as_word(__hmul2(__hsub2(as_half2(biased), as_half2(0x58805880u)), scale));
}

// Two 4-bit codes in f16 times an eighth of the scales, offset by kOffset: in bits 0..3 and 20..23 of `x`
// (kSplit), both in bits 0..3 of their halves, or both in 4..7 (kUpper); of five bits the next one belongs to
// it. 0x6400 | q is the f16 1024 + q, 0x6400 | q << 4 is 1024 + 16 q: all exact.
enum class Nibbles : uint8_t { kSplit, kLower, kUpper };
template <Nibbles kWhere, int kOffset>
__device__ __forceinline__ uint32_t scaled_nibbles(uint32_t x, __half2 scale) {
  constexpr bool kFive = kOffset == 16;
  constexpr uint32_t kLow = kFive ? 0x1f : 0xf;
  constexpr uint32_t kMask = kWhere == Nibbles::kSplit   ? kLow << 20 | kLow
                             : kWhere == Nibbles::kLower ? kLow << 16 | kLow
                                                         : kLow << 20 | kLow << 4;
  constexpr float kFirst = kWhere == Nibbles::kUpper ? 0x1p-7f : 0x1p-3f,
                  kSecond = kWhere == Nibbles::kLower ? 0x1p-3f : 0x1p-7f;
  const __half2 by = __floats2half2_rn(kFirst, kSecond),
                less = __floats2half2_rn(-1024 * kFirst - kOffset / 8.0f, -1024 * kSecond - kOffset / 8.0f);
  return as_word(__hmul2(__hfma2(as_half2((x & kMask) | 0x64006400u), by, less), scale));
}

// The 16 codes of row r that are this lane's.
template <int b>
__device__ __forceinline__ void read_codes(uint32_t slot, int r, int g, uint32_t (&w)[2]) {
  const uint32_t row = slot + r * 16 * b;
  if constexpr (b == 4) {
    const uint2 v = load_shared2(row + piece_place<KvForm::kTbq4H, true>(r, g / 2) * 16 + g % 2 * 8);
    w[0] = v.x, w[1] = v.y;
  } else if constexpr (b == 3) {
    const uint32_t at = row + g / 2 * 12 + g % 2 * 4, a = load_shared(at), c = load_shared(at + 4);
    w[0] = __funnelshift_r(a, c, g % 2 * 16);
    w[1] = c >> (g % 2 * 16);
  } else {
    w[0] = load_shared(row + g * 4);
    w[1] = 0;
  }
}
// Codes of two keys, value by value: pairs of even values, pairs of odd ones.
template <int b>
__device__ __forceinline__ void interleave(const uint32_t (&x)[2], const uint32_t (&y)[2],
                                           uint32_t (&even)[2], uint32_t (&odd)[2]) {
  constexpr uint32_t kLow = b == 4 ? 0x0f0f0f0fu : b == 3 ? 0xc71c71c7u : 0x33333333u;
  constexpr uint32_t kHigh = b == 3 ? 0x00001c71u : kLow;
  even[0] = (x[0] & kLow) | ((y[0] << b) & ~kLow);
  odd[0] = ((b == 3 ? __funnelshift_r(x[0], x[1], b) : x[0] >> b) & kLow) | (y[0] & ~kLow);
  even[1] = (x[1] & kHigh) | ((b == 3 ? __funnelshift_l(y[0], y[1], b) : y[1] << b) & ~kHigh);
  odd[1] = ((x[1] >> b) & kHigh) | (y[1] & ~kHigh);
}

}  // namespace kvasir::cuda
