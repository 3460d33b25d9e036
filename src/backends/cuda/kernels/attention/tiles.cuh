// From a region of a page to a tile of 64 f16 rows in shared memory, 8 values (one 16-byte store) at a time.
#pragma once
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/mma.cuh"

namespace kvasir::cuda {

// Levels of a head-wide type as f16, split into bytes for the byte-permute unit: 8 entries (all levels of 2
// and 3 bits, the positive ones of 4 bits).
struct LevelBytes {
  uint32_t low[2], high[2];
};

__device__ __noinline__ LevelBytes level_bytes(KvForm form, int d) {
  LevelBytes out{{0, 0}, {0, 0}};
  if (!head_wide(form)) return out;
  const int b = form == KvForm::kTbq2H ? 2 : form == KvForm::kTbq3H ? 3 : 4;
  const float* level = kHeadTables.level[b - 2][size_index(d)] + (b == 4 ? 8 : 0);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t h = __half_as_ushort(__float2half_rn(level[i]));
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

// Rows [low, high) of the region into the tile (row stride D + 8); the others are zeroed, so that what no
// query sees cannot spread a NaN. f16 rows travel asynchronously: commit and wait for them.
template <int D, int kThreads, KvForm F>
__device__ __forceinline__ void load_form(const Region& from, int low, int high, const LevelBytes& levels,
                                          __half* tile) {
  constexpr int kUnits = kPage * D / 8, kEach = kUnits / kThreads, kBatch = kEach < 8 ? kEach : 8;
  static_assert(kUnits % kThreads == 0 && kEach % kBatch == 0);
  constexpr int b = F == KvForm::kTbq2H ? 2 : F == KvForm::kTbq3H ? 3 : 4;
  if constexpr (F == KvForm::kF16) {
#pragma unroll 2
    for (int unit = int(threadIdx.x); unit < kUnits; unit += kThreads) {
      const int row = unit / (D / 8), column = unit % (D / 8);
      copy_async(tile + row * (D + 8) + column * 8, from.data + int64_t(unit) * 16, row >= low && row < high);
    }
    return;
  }
#pragma unroll 1
  for (int first = 0; first < kEach; first += kBatch) {
    uint2 raw[kBatch];
    __half scale[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = (first + i) * kThreads + int(threadIdx.x), row = unit / (D / 8),
                column = unit % (D / 8);
      const bool valid = row >= low && row < high;
      if constexpr (F == KvForm::kQ8_0) {
        raw[i] = reinterpret_cast<const uint2*>(from.data)[unit];
        scale[i] = reinterpret_cast<const __half*>(from.data + kPage * D)[row * (D / 32) + column / 4];
        if (!valid) raw[i] = {0, 0}, scale[i] = __ushort_as_half(0);
      } else {
        if constexpr (b == 4) raw[i].x = reinterpret_cast<const uint32_t*>(from.data)[unit];
        if constexpr (b == 2) raw[i].x = reinterpret_cast<const uint16_t*>(from.data)[unit];
        if constexpr (b == 3) {
          const uint32_t at = uint32_t(unit) * 3;  // 24 bits over at most two words
          const uint32_t* words = reinterpret_cast<const uint32_t*>(from.data) + at / 4;
          const uint32_t w0 = words[0], w1 = at % 4 > 1 ? words[1] : 0;
          raw[i].x = __funnelshift_r(w0, w1, 8 * (at % 4));
        }
        scale[i] = reinterpret_cast<const __half*>(from.data + kPage * (D / 8 * b))[row];
        if (!valid) raw[i].x = 0, scale[i] = __ushort_as_half(0);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = (first + i) * kThreads + int(threadIdx.x), row = unit / (D / 8),
                column = unit % (D / 8);
      int4 v;
      if constexpr (F == KvForm::kQ8_0)
        v = expand_int8(raw[i], scale[i]);
      else
        v = scale_halves(expand_codes<b>(levels, raw[i].x), scale[i]);
      *reinterpret_cast<int4*>(tile + row * (D + 8) + column * 8) = v;
    }
  }
}

// Not inlined: every launch of a decode step waits for its code, so three unrolled copies cost more than a
// call (half of the samples of a launch waited for an instruction; 15.5 us before, 9.4 after).
template <int D, int kThreads>
__device__ __noinline__ void load_tile(const Region& from, int low, int high, const LevelBytes& levels,
                                       __half* tile) {
  switch (from.form) {
    case KvForm::kF16:
      return load_form<D, kThreads, KvForm::kF16>(from, low, high, levels, tile);
    case KvForm::kQ8_0:
      return load_form<D, kThreads, KvForm::kQ8_0>(from, low, high, levels, tile);
    case KvForm::kTbq2H:
      return load_form<D, kThreads, KvForm::kTbq2H>(from, low, high, levels, tile);
    case KvForm::kTbq3H:
      return load_form<D, kThreads, KvForm::kTbq3H>(from, low, high, levels, tile);
    case KvForm::kTbq4H:
      return load_form<D, kThreads, KvForm::kTbq4H>(from, low, high, levels, tile);
    default:
      return;
  }
}

}  // namespace kvasir::cuda
