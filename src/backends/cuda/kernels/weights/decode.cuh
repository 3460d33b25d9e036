// One value of a matrix in planes, as the scalar codec gives it.
#pragma once
#include "backends/cuda/kernels/common.cuh"
#include "formats/iq4_levels.h"

namespace kvasir::cuda {

struct ScaleMin {
  float scale, min;
};

// Sub-block j of the 16-byte header {d, dmin, 12 packed bytes} of a 256-value block: 32-value scale and
// minimum.
__device__ __forceinline__ ScaleMin header_scale(const int4& header, uint32_t j) {
  const uint32_t word = uint32_t(header.x);
  const float d = __half2float(__ushort_as_half(uint16_t(word))),
              dmin = __half2float(__ushort_as_half(uint16_t(word >> 16)));
  // Packed bytes 0..3 in .y, 4..7 in .z, 8..11 in .w.
  const uint32_t shift = 8 * (j & 3);
  const uint32_t a = uint32_t(header.y) >> shift, b = uint32_t(header.z) >> shift,
                 c = uint32_t(header.w) >> shift;
  const uint32_t s = (j & 4) == 0 ? (a & 63) : ((c & 15) | ((a & 0xc0) >> 2));
  const uint32_t m = (j & 4) == 0 ? (b & 63) : (((c >> 4) & 15) | ((b & 0xc0) >> 2));
  return {__fmul_rn(d, float(s)), __fmul_rn(dmin, float(m))};
}

__device__ __forceinline__ float half_at(const uint8_t* p, int64_t i) {
  return __half2float(reinterpret_cast<const __half*>(p)[i]);
}

// Levels code .. code + 3 of iq4_nl and iq4_xs, a byte each.
constexpr uint32_t iq4_word(size_t code) {
  uint32_t word = 0;
  for (size_t i = 0; i < 4; ++i) word |= uint32_t(uint8_t(formats::kIq4Levels[code + i])) << (8 * i);
  return word;
}

// q2_k and q3_k.
__device__ inline float small_weight_at(const MatrixView& w, int64_t group, int v) {
  const int word = v / 4, at = 8 * (v % 4);
  int code =
      int(reinterpret_cast<const uint32_t*>(w.codes)[group * 2 + word / 4] >> (at + 2 * (word % 4))) & 3;
  const uint8_t s = w.aux[2 * group + v / 16];
  if (w.form == WeightForm::kQ2K) {
    const float d = half_at(w.aux2, group / 8 * 2), dmin = half_at(w.aux2, group / 8 * 2 + 1);
    return __fsub_rn(__fmul_rn(__fmul_rn(d, float(s & 15)), float(code)), __fmul_rn(dmin, float(s >> 4)));
  }
  code |= int(reinterpret_cast<const uint32_t*>(w.high)[group] >> (at + word) & 1) << 2;
  return __fmul_rn(__fmul_rn(half_at(w.aux2, group / 8), float(int8_t(s))), float(code - 4));
}

// Value i of row `row`.
__device__ inline float weight_at(const MatrixView& w, int64_t row, int i) {
  const int64_t at = row * w.n_in + i, group = at / 32;
  switch (w.form) {
    case WeightForm::kF32:
      return reinterpret_cast<const float*>(w.codes)[at];
    case WeightForm::kF16:
      return half_at(w.codes, at);
    case WeightForm::kBf16:
      return __uint_as_float(uint32_t(reinterpret_cast<const uint16_t*>(w.codes)[at]) << 16);
    case WeightForm::kQ8:
      return __fmul_rn(half_at(w.aux, group), float(reinterpret_cast<const int8_t*>(w.codes)[at]));
    case WeightForm::kQ2K:
    case WeightForm::kQ3K:
      return small_weight_at(w, group, int(at % 32));
    case WeightForm::kNone:
      return 0;
    default:
      break;
  }
  const int v = int(at % 32), byte = v % 16, word = v / 4;
  int code = (w.codes[group * 16 + byte] >> (v >= 16 ? 4 : 0)) & 15;
  switch (w.form) {
    case WeightForm::kQ4:
      return __fmul_rn(half_at(w.aux, group), float(code - 8));
    case WeightForm::kQ4M:
      return __fadd_rn(__fmul_rn(half_at(w.aux, 2 * group), float(code)), half_at(w.aux, 2 * group + 1));
    case WeightForm::kQ4K: {
      const ScaleMin s = header_scale(load4(w.aux + group / 8 * 16), int(group % 8));
      return __fsub_rn(__fmul_rn(s.scale, float(code)), s.min);
    }
    case WeightForm::kIq4Nl:
    case WeightForm::kIq4Xs: {
      constexpr uint32_t kLevels[4] = {iq4_word(0), iq4_word(4), iq4_word(8), iq4_word(12)};
      const uint32_t four =
          code < 8 ? (code < 4 ? kLevels[0] : kLevels[1]) : (code < 12 ? kLevels[2] : kLevels[3]);
      const float level = float(int8_t(four >> (8 * (code % 4))));
      const float s = w.form == WeightForm::kIq4Nl
                          ? half_at(w.aux, group)
                          : __fmul_rn(half_at(w.aux2, group / 8), float(int8_t(w.aux[group])));
      return __fmul_rn(s, level);
    }
    case WeightForm::kQ6K: {
      const uint32_t bits = reinterpret_cast<const uint32_t*>(w.high)[group * 2 + word / 4];
      code |= int((bits >> (8 * (v % 4) + 2 * (word % 4))) & 3) << 4;
      const float s = __fmul_rn(half_at(w.aux2, group / 8),
                                float(reinterpret_cast<const int8_t*>(w.aux)[group * 2 + v / 16]));
      return __fmul_rn(s, float(code - 32));
    }
    default:
      break;
  }
  const uint32_t bits = reinterpret_cast<const uint32_t*>(w.high)[group];
  code |= int((bits >> (8 * (v % 4) + word)) & 1) << 4;
  switch (w.form) {
    case WeightForm::kQ5:
      return __fmul_rn(half_at(w.aux, group), float(code - 16));
    case WeightForm::kQ5M:
      return __fadd_rn(__fmul_rn(half_at(w.aux, 2 * group), float(code)), half_at(w.aux, 2 * group + 1));
    default: {
      const ScaleMin s = header_scale(load4(w.aux + group / 8 * 16), int(group % 8));
      return __fsub_rn(__fmul_rn(s.scale, float(code)), s.min);
    }
  }
}

}  // namespace kvasir::cuda
