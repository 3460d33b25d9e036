// Units of the types of 2 and 3 bits, and of those whose codes stand for unevenly spaced levels: 32 values a
// lane at a time.
#pragma once
#include "backends/cuda/kernels/matvec/unit.cuh"

namespace kvasir::cuda {

// q2_k, q3_k: two bits a value in 8 bytes; two scales.
template <WeightForm F>
struct TwoBitUnit {
  static constexpr int kValues = 32, kBytes = 8;
  static constexpr bool kThird = F == WeightForm::kQ3K;
  uint2 codes;
  uint32_t high, aux, aux2;
  int w[8];
  float scale[2], minimum[2];

  __device__ __forceinline__ void load(const MatrixView& m, int64_t row, int unit, bool valid) {
    codes = {0, 0};
    high = aux = aux2 = 0;
    if (!valid) return;
    const int64_t group = row * (m.n_in / 32) + unit;
    codes = __ldg(reinterpret_cast<const uint2*>(m.codes) + group);
    aux = __ldg(reinterpret_cast<const uint16_t*>(m.aux) + group);
    if constexpr (kThird) {
      high = __ldg(reinterpret_cast<const uint32_t*>(m.high) + group);
      aux2 = __ldg(reinterpret_cast<const uint16_t*>(m.aux2) + group / 8);
    } else {
      aux2 = __ldg(reinterpret_cast<const uint32_t*>(m.aux2) + group / 8);
    }
  }

  // From one row's planes.
  __device__ __forceinline__ void take(const uint8_t* row_codes, const uint8_t* row_high,
                                       const uint8_t* row_aux, const uint8_t* row_aux2, int unit) {
    codes = reinterpret_cast<const uint2*>(row_codes)[unit];
    aux = reinterpret_cast<const uint16_t*>(row_aux)[unit];
    if constexpr (kThird) {
      high = reinterpret_cast<const uint32_t*>(row_high)[unit];
      aux2 = reinterpret_cast<const uint16_t*>(row_aux2)[unit / 8];
    } else {
      aux2 = reinterpret_cast<const uint32_t*>(row_aux2)[unit / 8];
    }
  }

  __device__ __forceinline__ void unpack(int) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      w[j] = int(((j < 4 ? codes.x : codes.y) >> (2 * (j % 4))) & 0x03030303u);
      if constexpr (kThird) w[j] |= int((high >> j) & 0x01010101u) << 2;
    }
    const float d = __half2float(__ushort_as_half(uint16_t(aux2)));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t s = aux >> (8 * i);
      if constexpr (kThird) {
        scale[i] = d * float(int8_t(s));
        minimum[i] = 4 * scale[i];
      } else {
        scale[i] = d * float(s & 15);
        minimum[i] = __half2float(__ushort_as_half(uint16_t(aux2 >> 16))) * float(s >> 4 & 15);
      }
    }
  }

  __device__ __forceinline__ float dot(const UnitInput<F>& x, float acc) const {
    int low = 0, up = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      low = __dp4a(w[j], x.x[j], low);
      up = __dp4a(w[4 + j], x.x[4 + j], up);
    }
    return add(low, up, x.scale, x.sums, acc);
  }
  __device__ __forceinline__ float add(int low, int up, float x_scale, int sums, float acc) const {
    return acc + x_scale * (scale[0] * float(low) - minimum[0] * float(low_sum(sums)) + scale[1] * float(up) -
                            minimum[1] * float(high_sum(sums)));
  }
};
template <>
struct Unit<WeightForm::kQ2K> : TwoBitUnit<WeightForm::kQ2K> {};
template <>
struct Unit<WeightForm::kQ3K> : TwoBitUnit<WeightForm::kQ3K> {};

// iq4_nl, iq4_xs: nibbles that choose from 16 int8 levels, by byte permutes.
template <WeightForm F>
struct LevelUnit {
  static constexpr int kValues = 32, kBytes = 16;
  int4 codes;
  uint32_t aux, aux2;
  int w[8];
  float scale;

  __device__ __forceinline__ void load(const MatrixView& m, int64_t row, int unit, bool valid) {
    codes = {0, 0, 0, 0};
    aux = aux2 = 0;
    if (!valid) return;
    const int64_t group = row * (m.n_in / 32) + unit;
    codes = load_stream(m.codes + group * 16);
    if constexpr (F == WeightForm::kIq4Nl) {
      aux = __ldg(reinterpret_cast<const uint16_t*>(m.aux) + group);
    } else {
      aux = __ldg(m.aux + group);
      aux2 = __ldg(reinterpret_cast<const uint16_t*>(m.aux2) + group / 8);
    }
  }

  __device__ __forceinline__ void take(const uint8_t* row_codes, const uint8_t*, const uint8_t* row_aux,
                                       const uint8_t* row_aux2, int unit) {
    codes = load4(row_codes + unit * 16);
    if constexpr (F == WeightForm::kIq4Nl) {
      aux = reinterpret_cast<const uint16_t*>(row_aux)[unit];
    } else {
      aux = row_aux[unit];
      aux2 = reinterpret_cast<const uint16_t*>(row_aux2)[unit / 8];
    }
  }

  // Levels of the four nibbles of the low half of `c`.
  static __device__ __forceinline__ uint32_t levels(uint32_t c) {
    constexpr uint32_t kLevels[4] = {iq4_word(0), iq4_word(4), iq4_word(8), iq4_word(12)};
    const uint32_t low = __byte_perm(kLevels[0], kLevels[1], c & 0x7777u),
                   high = __byte_perm(kLevels[2], kLevels[3], c & 0x7777u);
    return __byte_perm(low, high, 0x3210u | (c & 0x8888u) >> 1);
  }

  __device__ __forceinline__ void unpack(int) {
    const uint32_t c[4] = {uint32_t(codes.x), uint32_t(codes.y), uint32_t(codes.z), uint32_t(codes.w)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Values 4 j, 16 + 4 j, 4 j + 1, ... in turn.
      const uint32_t a = levels(c[j]), b = levels(c[j] >> 16);
      w[j] = int(__byte_perm(a, b, 0x6420));
      w[4 + j] = int(__byte_perm(a, b, 0x7531));
    }
    if constexpr (F == WeightForm::kIq4Nl)
      scale = __half2float(__ushort_as_half(uint16_t(aux)));
    else
      scale = __half2float(__ushort_as_half(uint16_t(aux2))) * float(int8_t(aux));
  }

  __device__ __forceinline__ float dot(const UnitInput<F>& x, float acc) const {
    int sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = __dp4a(w[j], x.x[j], sum);
    return add(sum, 0, x.scale, 0, acc);
  }
  __device__ __forceinline__ float add(int low, int up, float x_scale, int, float acc) const {
    return acc + x_scale * scale * float(low + up);
  }
};
template <>
struct Unit<WeightForm::kIq4Nl> : LevelUnit<WeightForm::kIq4Nl> {};
template <>
struct Unit<WeightForm::kIq4Xs> : LevelUnit<WeightForm::kIq4Xs> {};

}  // namespace kvasir::cuda
