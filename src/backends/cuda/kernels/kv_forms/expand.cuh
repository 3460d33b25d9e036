// Codes of eight values to f16, 16 bytes.
#pragma once
#include "backends/cuda/kernels/kv_append/head_tables.cuh"
#include "backends/cuda/kernels/kv_forms/tables.cuh"

namespace kvasir::cuda {

// Levels of a code book as f16, split into bytes for the byte-permute unit: 8 entries (all levels of 2
// and 3 bits, the positive ones of 4 bits).
struct LevelBytes {
  uint32_t low[2], high[2];
  const uint32_t* pairs = nullptr;  // of a trellis type: TrellisPairs in shared memory, where there is room
  const uint16_t* each = nullptr;   // or its TrellisLevels there
};

// Where the eight levels of a code book begin, and what they are multiplied by; null without a book.
struct BookLevels {
  const float* level;
  float unit;
};
__device__ __forceinline__ BookLevels book_levels(KvForm form, int d) {
  const int skip = code_bits(form) == 4 ? 8 : 0;
  if (head_wide(form) && !trellis(form))
    return {kHeadTables.level[code_bits(form) - 2][size_index(d)] + skip, 1};
  if (form == KvForm::kTbq3_0) return {kCodecTables.tbq3.level, 1};
  if (form == KvForm::kTbq4_0) return {kCodecTables.tbq4.level + skip, 1};
  if (form == KvForm::kQ4Polar) return {kCodecTables.polar.level + skip, formats::kInverseRoot128};
  return {nullptr, 1};
}

inline __device__ __noinline__ LevelBytes level_bytes(KvForm form, int d) {
  LevelBytes out{{0, 0}, {0, 0}};
  const BookLevels book = book_levels(form, d);
  if (!book.level) return out;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t h = __half_as_ushort(__float2half_rn(book.level[i] * book.unit));
    out.low[i / 4] |= (h & 255u) << (8 * (i % 4));
    out.high[i / 4] |= (h >> 8) << (8 * (i % 4));
  }
  return out;
}

// Four levels (two half2) of the selectors in the nibbles of `s`.
__device__ __forceinline__ void select_levels(const LevelBytes& t, uint32_t s, uint32_t& first,
                                              uint32_t& second) {
  const uint32_t low = __byte_perm(t.low[0], t.low[1], s), high = __byte_perm(t.high[0], t.high[1], s);
  first = __byte_perm(low, high, 0x5140);
  second = __byte_perm(low, high, 0x7362);
}

// Bits of 8 codes -> 8 f16 levels.
template <int b>
__device__ __forceinline__ int4 expand_codes(const LevelBytes& t, uint32_t bits) {
  uint32_t out[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t c = bits >> (4 * b * half);
    uint32_t s, negative = 0;
    if constexpr (b == 4) {
      negative = ~(c >> 3) & 0x1111u;  // codes below 8 mirror the positive levels
      s = (c & 0x7777u) ^ (negative * 7);
    } else if constexpr (b == 3) {
      s = (c & 7) | ((c & 0x38) << 1) | ((c & 0x1c0) << 2) | ((c & 0xe00) << 3);
    } else {
      s = (c & 3) | ((c & 0xc) << 2) | ((c & 0x30) << 4) | ((c & 0xc0) << 6);
    }
    select_levels(t, s, out[2 * half], out[2 * half + 1]);
    if constexpr (b == 4) {
      out[2 * half] ^= ((negative & 1u) << 15) | ((negative & 0x10u) << 27);
      out[2 * half + 1] ^= ((negative & 0x100u) << 7) | ((negative & 0x1000u) << 19);
    }
  }
  return {int(out[0]), int(out[1]), int(out[2]), int(out[3])};
}

__device__ __forceinline__ int4 scale_halves(int4 v, __half scale) {
  const __half2 s = __half2half2(scale);
  __half2* h = reinterpret_cast<__half2*>(&v);
#pragma unroll
  for (int i = 0; i < 4; ++i) h[i] = __hmul2(h[i], s);
  return v;
}

__device__ __forceinline__ int4 expand_int8(uint2 codes, __half scale) {
  // 0x6400 | (q + 128) is the f16 1024 + 128 + q: exact, then one subtraction.
  const uint32_t a = codes.x ^ 0x80808080u, b = codes.y ^ 0x80808080u;
  uint32_t w[4] = {__byte_perm(a, 0x64646464u, 0x4140), __byte_perm(a, 0x64646464u, 0x4342),
                   __byte_perm(b, 0x64646464u, 0x4140), __byte_perm(b, 0x64646464u, 0x4342)};
  const __half2 bias = __half2half2(__ushort_as_half(0x6480));
  int4 out;
  uint32_t* o = reinterpret_cast<uint32_t*>(&out);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __half2 v = __hsub2(*reinterpret_cast<const __half2*>(&w[i]), bias);
    *reinterpret_cast<__half2*>(&o[i]) = v;
  }
  return scale_halves(out, scale);
}

// q4_0, q5_0: codes less `middle`; bit i of `high` is bit 4 of code i.
template <int middle>
__device__ __forceinline__ int4 expand_steps(uint32_t codes, uint32_t high, __half scale) {
  uint32_t even = codes & 0x0f0f0f0fu, odd = (codes >> 4) & 0x0f0f0f0fu;
  if constexpr (middle == 16) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      even |= ((high >> (2 * k)) & 1u) << (8 * k + 4);
      odd |= ((high >> (2 * k + 1)) & 1u) << (8 * k + 4);
    }
  }
  const __half2 bias = __half2half2(__ushort_as_half(uint16_t(0x6400 + middle)));
  int4 out;
  uint32_t* o = reinterpret_cast<uint32_t*>(&out);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    // 0x6400 | code is the f16 1024 + code.
    const uint32_t w = (__byte_perm(even, odd, uint32_t(k | (4 + k) << 8)) & 0x00ff00ffu) | 0x64006400u;
    const __half2 v = __hsub2(*reinterpret_cast<const __half2*>(&w), bias);
    o[k] = *reinterpret_cast<const uint32_t*>(&v);
  }
  return scale_halves(out, scale);
}

// Trellis types: symbols of eight values and, below them, `before` (of 2 and 3 bits the 6 bits, of 4 bits the
// 8 bits in front of them in the ring).
template <int b>
__device__ __forceinline__ const uint16_t* trellis_levels() {
  return b == 2 ? kTrellisLevels.b2 : b == 3 ? kTrellisLevels.b3 : kTrellisLevels.b4;
}
template <int b>
__device__ __forceinline__ uint16_t trellis_level(uint32_t window, const uint16_t* levels) {
  return levels[b == 2 ? window & 255 : b == 3 ? window & 511 : (window >> 4 & 255) | (window & 1) << 8];
}
template <int b>
__device__ __forceinline__ int4 expand_trellis(uint32_t symbols, uint32_t before, __half scale,
                                               const LevelBytes& levels) {
  constexpr int kBefore = b == 4 ? 8 : 6;
  const uint32_t low = symbols << kBefore | before, high = symbols >> (32 - kBefore);
  uint32_t out[4];
  if (levels.pairs) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t w = __funnelshift_r(low, high, 2 * b * k);
      out[k] = levels.pairs[b == 4 ? (w >> 4 & 0xfff) | (w & 1) << 12 : w & (TrellisPairs<b>::kEntries - 1)];
    }
    return scale_halves({int(out[0]), int(out[1]), int(out[2]), int(out[3])}, scale);
  }
  const uint16_t* each = levels.each ? levels.each : trellis_levels<b>();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    out[k] = uint32_t(trellis_level<b>(__funnelshift_r(low, high, 2 * b * k), each)) |
             uint32_t(trellis_level<b>(__funnelshift_r(low, high, 2 * b * k + b), each)) << 16;
  return scale_halves({int(out[0]), int(out[1]), int(out[2]), int(out[3])}, scale);
}

}  // namespace kvasir::cuda
