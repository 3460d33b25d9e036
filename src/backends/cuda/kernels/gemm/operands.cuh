// Weights of a stage, as they lie in a slot of shared memory, to left operands of the matrix units: 64 rows
// by 16 values a product. Lane 4 g + t of a warp holds rows g and g + 8, and of each 16 values the four from
// 4 t on: the right operand has its values in that order too (rows.cu).
//
// A stage is kDepth values of 128 rows. A row's codes are 16-byte chunks, permuted so that the eight rows a
// warp reads at a time lie in different banks; scales are an array of their own after all codes.
#pragma once
#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/weights/decode.cuh"

namespace kvasir::cuda {

inline constexpr int kDepth = 64, kTileRows = 128;

// Bytes of a stage's row: codes, more bits of them, scales (and where the file has one for 256 values, that).
struct StageBytes {
  int codes, high, aux, aux2;
  constexpr int row() const { return codes + high + aux + aux2; }
};
constexpr StageBytes stage_bytes(WeightForm form) {
  switch (form) {
    case WeightForm::kF16:
    case WeightForm::kBf16:
      return {128, 0, 0, 0};
    case WeightForm::kQ8:
      return {64, 0, 4, 0};
    case WeightForm::kQ4:
    case WeightForm::kIq4Nl:
      return {32, 0, 4, 0};
    case WeightForm::kQ4M:
      return {32, 0, 8, 0};
    case WeightForm::kIq4Xs:
      return {32, 0, 4, 4};
    case WeightForm::kQ5:
      return {32, 8, 4, 0};
    case WeightForm::kQ5M:
      return {32, 8, 8, 0};
    case WeightForm::kQ4K:
      return {32, 0, 16, 0};
    case WeightForm::kQ5K:
      return {32, 8, 16, 0};
    case WeightForm::kQ6K:
      return {32, 16, 4, 4};
    default:
      return {0, 0, 0, 0};
  }
}
constexpr bool reads_form(WeightForm form) { return stage_bytes(form).codes > 0; }

// Where chunk c of a row's codes lies.
template <WeightForm F>
__device__ __forceinline__ int chunk_place(int row, int c) {
  if constexpr (F == WeightForm::kF16 || F == WeightForm::kBf16) return row * 128 + (c ^ (row % 4 * 2)) * 16;
  if constexpr (F == WeightForm::kQ8) return row * 64 + (c ^ (row / 2 % 4)) * 16;
  return row * 32 + (c ^ (row / 4 % 2)) * 16;
}

__device__ __forceinline__ uint32_t load_word(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ uint2 load_words(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
__device__ __forceinline__ uint4 load_four(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
__device__ __forceinline__ float low_float(uint32_t w) { return __low2float(as_half2(w)); }
__device__ __forceinline__ float high_float(uint32_t w) { return __high2float(as_half2(w)); }

// Four bytes less `middle`, times the scale: both are exact in f16, their product is rounded once.
template <int middle>
__device__ __forceinline__ void scaled_bytes(uint32_t bytes, __half2 scale, uint32_t& low, uint32_t& high) {
  // 0x6400 | b is the f16 1024 + b.
  const __half2 bias = __half2half2(__ushort_as_half(uint16_t(0x6400 + middle)));
  low = as_word(__hmul2(__hsub2(as_half2(__byte_perm(bytes, 0x64646464u, 0x4140)), bias), scale));
  high = as_word(__hmul2(__hsub2(as_half2(__byte_perm(bytes, 0x64646464u, 0x4342)), bias), scale));
}
// Four bytes less `middle` times a scale of f32, and an addend.
template <int middle>
__device__ __forceinline__ void scaled_bytes(uint32_t bytes, float scale, float add, uint32_t& low,
                                             uint32_t& high) {
  // 0x4b000000 | b is the f32 2^23 + b.
  const auto value = [&](uint32_t selector) {
    return fmaf(__uint_as_float(__byte_perm(bytes, 0x4b000000u, selector)) - float(8388608 + middle), scale,
                add);
  };
  low = as_word(__floats2half2_rn(value(0x7440), value(0x7441)));
  high = as_word(__floats2half2_rn(value(0x7442), value(0x7443)));
}

// Two bf16 to f16.
__device__ __forceinline__ uint32_t halves_of_bf16(uint32_t w) {
  return as_word(__floats2half2_rn(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)));
}
// Levels of four codes of iq4_nl and iq4_xs, plus 128.
__device__ __forceinline__ uint32_t iq4_levels(uint32_t codes) {
  const uint32_t twice = (codes | codes >> 4) & 0x00ff00ffu, all = twice | twice >> 8, at = all & 0x7777u;
  const uint32_t low = __byte_perm(iq4_word(0), iq4_word(4), at),
                 high = __byte_perm(iq4_word(8), iq4_word(12), at), upper = (codes >> 3 & 0x01010101u) * 255;
  return ((low & ~upper) | (high & upper)) ^ 0x80808080u;
}
// Fifth bits of the four codes of word `word` of a group.
__device__ __forceinline__ uint32_t fifth_bits(uint32_t high, int word) {
  return (high >> word & 0x01010101u) << 4;
}

// Left operands of a stage: [16 values][a part of both rows].
using Operands = uint32_t[4][4];

// One of its two rows.
template <WeightForm F>
__device__ __forceinline__ void make_half(uint32_t slot, int stage, int r, int half, int t, int block,
                                          Operands& a) {
  constexpr StageBytes kBytes = stage_bytes(F);
  const uint32_t high_at = slot + kTileRows * kBytes.codes, aux_at = high_at + kTileRows * kBytes.high,
                 aux2_at = aux_at + kTileRows * kBytes.aux;
  if constexpr (F == WeightForm::kF16 || F == WeightForm::kBf16) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint2 w = load_words(slot + chunk_place<F>(r, 2 * k + t / 2) + t % 2 * 8);
      a[k][half] = F == WeightForm::kF16 ? w.x : halves_of_bf16(w.x);
      a[k][half + 2] = F == WeightForm::kF16 ? w.y : halves_of_bf16(w.y);
    }
  } else if constexpr (F == WeightForm::kQ8 || F == WeightForm::kQ4) {
    const __half2 scales = as_half2(load_word(aux_at + r * 4));
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const __half2 scale = g ? __high2half2(scales) : __low2half2(scales);
      if constexpr (F == WeightForm::kQ8) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint32_t w = load_word(slot + chunk_place<F>(r, 2 * g + k) + 4 * t) ^ 0x80808080u;
          scaled_bytes<128>(w, scale, a[2 * g + k][half], a[2 * g + k][half + 2]);
        }
      } else {
        const uint32_t w = load_word(slot + chunk_place<F>(r, g) + 4 * t);
        scaled_bytes<8>(w & 0x0f0f0f0fu, scale, a[2 * g][half], a[2 * g][half + 2]);
        scaled_bytes<8>(w >> 4 & 0x0f0f0f0fu, scale, a[2 * g + 1][half], a[2 * g + 1][half + 2]);
      }
    }
  } else if constexpr (F == WeightForm::kQ5) {
    const __half2 scales = as_half2(load_word(aux_at + r * 4));
    const uint2 high = load_words(high_at + r * 8);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const __half2 scale = g ? __high2half2(scales) : __low2half2(scales);
      const uint32_t w = load_word(slot + chunk_place<F>(r, g) + 4 * t), h = g ? high.y : high.x;
      scaled_bytes<16>((w & 0x0f0f0f0fu) | fifth_bits(h, t), scale, a[2 * g][half], a[2 * g][half + 2]);
      scaled_bytes<16>((w >> 4 & 0x0f0f0f0fu) | fifth_bits(h, 4 + t), scale, a[2 * g + 1][half],
                       a[2 * g + 1][half + 2]);
    }
  } else if constexpr (F == WeightForm::kQ4M || F == WeightForm::kQ5M) {
    const uint2 scales = load_words(aux_at + r * 8);  // and minima
    const uint2 high = kBytes.high > 0 ? load_words(high_at + r * 8) : uint2{0, 0};
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const uint32_t s = g ? scales.y : scales.x, h = g ? high.y : high.x;
      const uint32_t w = load_word(slot + chunk_place<F>(r, g) + 4 * t);
      scaled_bytes<0>((w & 0x0f0f0f0fu) | fifth_bits(h, t), low_float(s), high_float(s), a[2 * g][half],
                      a[2 * g][half + 2]);
      scaled_bytes<0>((w >> 4 & 0x0f0f0f0fu) | fifth_bits(h, 4 + t), low_float(s), high_float(s),
                      a[2 * g + 1][half], a[2 * g + 1][half + 2]);
    }
  } else if constexpr (F == WeightForm::kIq4Nl || F == WeightForm::kIq4Xs) {
    const uint32_t small = load_word(aux_at + r * 4);
    float scale[2] = {low_float(small), high_float(small)};
    if constexpr (F == WeightForm::kIq4Xs) {  // four groups' factors of a block's scale
      const uint32_t both = load_word(aux2_at + r * 4);
      const float d = (block + stage / 4) % 2 ? high_float(both) : low_float(both);
#pragma unroll
      for (int g = 0; g < 2; ++g) scale[g] = d * float(int8_t(small >> (8 * (stage % 2 * 2 + g))));
    }
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const uint32_t w = load_word(slot + chunk_place<F>(r, g) + 4 * t);
      scaled_bytes<128>(iq4_levels(w & 0x0f0f0f0fu), scale[g], 0.0f, a[2 * g][half], a[2 * g][half + 2]);
      scaled_bytes<128>(iq4_levels(w >> 4 & 0x0f0f0f0fu), scale[g], 0.0f, a[2 * g + 1][half],
                        a[2 * g + 1][half + 2]);
    }
  } else {
    const uint32_t both = load_word(aux2_at + r * 4), small = load_word(aux_at + r * 4);
    const float d = (block + stage / 4) % 2 ? high_float(both) : low_float(both);
    const uint4 more = load_four(high_at + r * 16);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const uint32_t w = load_word(slot + chunk_place<F>(r, g) + 4 * t);
      const uint32_t top[2] = {(g ? more.z : more.x) >> (2 * t) & 0x03030303u,
                               (g ? more.w : more.y) >> (2 * t) & 0x03030303u};
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t code = (w >> (4 * k) & 0x0f0f0f0fu) | top[k] << 4;
        const float scale = d * float(int8_t(small >> (8 * (2 * g + k))));
        scaled_bytes<32>(code, scale, 0.0f, a[2 * g + k][half], a[2 * g + k][half + 2]);
      }
    }
  }
}

// Stage `stage` of the depth; `row`: the lane's upper row in the tile, t: lane % 4; q6_k, iq4_xs: `block`,
// where its two rows begin among the scales of 256 values.
template <WeightForm F>
__device__ __forceinline__ void make_operands(uint32_t slot, int stage, int row, int t, const int (&block)[2],
                                              Operands& a) {
  constexpr StageBytes kBytes = stage_bytes(F);
  if constexpr (F == WeightForm::kQ4K || F == WeightForm::kQ5K) {
    const uint32_t high_at = slot + kTileRows * kBytes.codes, aux_at = high_at + kTileRows * kBytes.high;
    // Each lane decodes the scales of one of its two rows and two groups, for the four lanes of the row.
    const int mine = row + 8 * (t & 1);
    const uint4 h = load_four(aux_at + mine * 16);
    const ScaleMin s = header_scale({int(h.x), int(h.y), int(h.z), int(h.w)}, stage % 4 * 2 + t / 2);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int from = (int(threadIdx.x) & 28) + half + 2 * g;
        const float scale = __shfl_sync(~0u, s.scale, from), min = -__shfl_sync(~0u, s.min, from);
        const uint32_t w = load_word(slot + chunk_place<F>(row + 8 * half, g) + 4 * t);
        const uint32_t h = kBytes.high > 0 ? load_word(high_at + (row + 8 * half) * 8 + 4 * g) : 0;
        scaled_bytes<0>((w & 0x0f0f0f0fu) | fifth_bits(h, t), scale, min, a[2 * g][half], a[2 * g][half + 2]);
        scaled_bytes<0>((w >> 4 & 0x0f0f0f0fu) | fifth_bits(h, 4 + t), scale, min, a[2 * g + 1][half],
                        a[2 * g + 1][half + 2]);
      }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) make_half<F>(slot, stage, row + 8 * half, half, t, block[half], a);
  }
}

}  // namespace kvasir::cuda
