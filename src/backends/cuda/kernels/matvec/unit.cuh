// What a lane takes of a matrix row at a time, mostly 16 bytes of codes (q8: 16 values, 4 to 6 bits: 32, f16:
// 8, f32: 4).
#pragma once
#include "backends/cuda/kernels/matvec/matvec.h"
#include "backends/cuda/kernels/weights/decode.cuh"

namespace kvasir::cuda {

template <WeightForm F>
struct UnitInput;  // the activations of one unit of one row

// Where activations lie: global or shared memory.
struct InputView {
  const float* x;
  QuantRows quant;
  int n_in;
};

struct IntInput {
  IntInput() = default;
  int x[8];
  float scale;
  int sums;
};

__device__ __forceinline__ int low_sum(int sums) { return int(int16_t(sums)); }
__device__ __forceinline__ int high_sum(int sums) { return sums >> 16; }

// To the left.
__device__ __forceinline__ uint32_t shifted(uint32_t v, int by) { return by >= 0 ? v << by : v >> -by; }

// 4, 5 and 6-bit forms.
template <WeightForm F>
struct UnitInput : IntInput {
  UnitInput() = default;
  __device__ __forceinline__ UnitInput(const InputView& a, int row, int unit) {
    const int8_t* q = a.quant.q + int64_t(row) * a.n_in + unit * 32;
    const int4 low = load4(q), high = load4(q + 16);
    const GroupMeta meta = a.quant.meta[int64_t(row) * (a.n_in / 32) + unit];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    scale = meta.scale;
    sums = meta.sums;
  }
};

template <WeightForm F>
struct Unit {
  static constexpr int kValues = 32, kBytes = 16;
  static constexpr bool kHeader = F == WeightForm::kQ4K || F == WeightForm::kQ5K;
  static constexpr bool kOneBit = F == WeightForm::kQ5 || F == WeightForm::kQ5M || F == WeightForm::kQ5K;
  static constexpr bool kMinimum = F == WeightForm::kQ4M || F == WeightForm::kQ5M;
  int4 codes, header;
  uint2 high;
  uint32_t aux, aux2;
  int w[8];
  float scale, scale_high, offset;

  __device__ __forceinline__ void load(const MatrixView& m, int64_t row, int unit, bool valid) {
    codes = header = {0, 0, 0, 0};
    high = {0, 0};
    aux = aux2 = 0;
    if (!valid) return;
    const int64_t group = row * (m.n_in / 32) + unit;
    codes = load_stream(m.codes + group * 16);
    if constexpr (kHeader) header = __ldg(reinterpret_cast<const int4*>(m.aux + group / 8 * 16));
    if constexpr (kOneBit) high.x = __ldg(reinterpret_cast<const uint32_t*>(m.high) + group);
    if constexpr (F == WeightForm::kQ6K) {
      high = __ldg(reinterpret_cast<const uint2*>(m.high) + group);
      aux = __ldg(reinterpret_cast<const uint16_t*>(m.aux) + group);
      aux2 = __ldg(reinterpret_cast<const uint16_t*>(m.aux2) + group / 8);
    } else if constexpr (kMinimum) {
      aux = __ldg(reinterpret_cast<const uint32_t*>(m.aux) + group);
    } else if constexpr (!kHeader) {
      aux = __ldg(reinterpret_cast<const uint16_t*>(m.aux) + group);
    }
  }

  // From one row's planes.
  __device__ __forceinline__ void take(const uint8_t* row_codes, const uint8_t* row_high,
                                       const uint8_t* row_aux, const uint8_t* row_aux2, int unit) {
    codes = load4(row_codes + unit * 16);
    if constexpr (kHeader) header = load4(row_aux + unit / 8 * 16);
    if constexpr (kOneBit) high.x = reinterpret_cast<const uint32_t*>(row_high)[unit];
    if constexpr (F == WeightForm::kQ6K) {
      high = reinterpret_cast<const uint2*>(row_high)[unit];
      aux = reinterpret_cast<const uint16_t*>(row_aux)[unit];
      aux2 = reinterpret_cast<const uint16_t*>(row_aux2)[unit / 8];
    } else if constexpr (kMinimum) {
      aux = reinterpret_cast<const uint32_t*>(row_aux)[unit];
    } else if constexpr (!kHeader) {
      aux = reinterpret_cast<const uint16_t*>(row_aux)[unit];
    }
  }

  __device__ __forceinline__ void unpack(int unit) {
    const int c[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      w[j] = c[j] & 0x0f0f0f0f;
      w[4 + j] = (c[j] >> 4) & 0x0f0f0f0f;
      if constexpr (kOneBit) {
        w[j] |= int(shifted(high.x, 4 - j) & 0x10101010u);
        w[4 + j] |= int(shifted(high.x, -j) & 0x10101010u);
      } else if constexpr (F == WeightForm::kQ6K) {
        w[j] |= int(shifted(high.x, 4 - 2 * j) & 0x30303030u);
        w[4 + j] |= int(shifted(high.y, 4 - 2 * j) & 0x30303030u);
      }
    }
    if constexpr (kHeader) {
      const ScaleMin s = header_scale(header, uint32_t(unit));
      scale = s.scale;
      offset = -s.min;
    } else if constexpr (F == WeightForm::kQ6K) {
      const float d = __half2float(__ushort_as_half(uint16_t(aux2)));
      scale = d * float(int8_t(aux));
      scale_high = d * float(int8_t(aux >> 8));
    } else {
      scale = __half2float(__ushort_as_half(uint16_t(aux)));
      if constexpr (kMinimum)
        offset = __half2float(__ushort_as_half(uint16_t(aux >> 16)));
      else
        offset = F == WeightForm::kQ4 ? -8.0f * scale : -16.0f * scale;
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
  // Of the dots of both halves.
  __device__ __forceinline__ float add(int low, int up, float x_scale, int sums, float acc) const {
    if constexpr (F == WeightForm::kQ6K)
      return acc + x_scale * (scale * float(low - 32 * low_sum(sums)) +
                              scale_high * float(up - 32 * high_sum(sums)));
    return acc + x_scale * (scale * float(low + up) + offset * float(low_sum(sums) + high_sum(sums)));
  }
};

template <>
struct UnitInput<WeightForm::kQ8> {
  int4 x;
  float scale;
  UnitInput() = default;
  __device__ __forceinline__ UnitInput(const InputView& a, int row, int unit) {
    x = load4(a.quant.q + int64_t(row) * a.n_in + unit * 16);
    scale = a.quant.meta[int64_t(row) * (a.n_in / 32) + unit / 2].scale;
  }
};

template <>
struct Unit<WeightForm::kQ8> {
  static constexpr int kValues = 16, kBytes = 16;
  int4 codes;
  uint32_t aux;
  float scale;

  __device__ __forceinline__ void load(const MatrixView& m, int64_t row, int unit, bool valid) {
    codes = {0, 0, 0, 0};
    aux = 0;
    if (!valid) return;
    codes = load_stream(m.codes + row * m.n_in + unit * 16);
    aux = __ldg(reinterpret_cast<const uint16_t*>(m.aux) + row * (m.n_in / 32) + unit / 2);
  }
  __device__ __forceinline__ void take(const uint8_t* row_codes, const uint8_t*, const uint8_t* row_aux,
                                       const uint8_t*, int unit) {
    codes = load4(row_codes + unit * 16);
    aux = reinterpret_cast<const uint16_t*>(row_aux)[unit / 2];
  }
  __device__ __forceinline__ void unpack(int) { scale = __half2float(__ushort_as_half(uint16_t(aux))); }
  __device__ __forceinline__ float dot(const UnitInput<WeightForm::kQ8>& x, float acc) const {
    int sum = __dp4a(codes.x, x.x.x, 0);
    sum = __dp4a(codes.y, x.x.y, sum);
    sum = __dp4a(codes.z, x.x.z, sum);
    sum = __dp4a(codes.w, x.x.w, sum);
    return acc + x.scale * scale * float(sum);
  }
};

// Float forms: products in f32.
template <int N>
struct FloatInput {
  float x[N];
  __device__ __forceinline__ FloatInput(const InputView& a, int row, int unit) {
    const float* p = a.x + int64_t(row) * a.n_in + unit * N;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(p + i);
      x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
  }
};
template <>
struct UnitInput<WeightForm::kF32> : FloatInput<4> {
  using FloatInput::FloatInput;
};
template <>
struct UnitInput<WeightForm::kF16> : FloatInput<8> {
  using FloatInput::FloatInput;
};
template <>
struct UnitInput<WeightForm::kBf16> : FloatInput<8> {
  using FloatInput::FloatInput;
};

template <WeightForm F, int N>
struct FloatUnit {
  static constexpr int kValues = N, kBytes = 16;
  int4 codes;
  float w[N];
  __device__ __forceinline__ void load(const MatrixView& m, int64_t row, int unit, bool valid) {
    codes = {0, 0, 0, 0};
    if (valid) codes = load_stream(m.codes + (row * m.n_in / N + unit) * 16);
  }
  __device__ __forceinline__ void unpack(int) {
    const uint32_t c[4] = {uint32_t(codes.x), uint32_t(codes.y), uint32_t(codes.z), uint32_t(codes.w)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (F == WeightForm::kF32) {
        w[i] = __uint_as_float(c[i]);
      } else if constexpr (F == WeightForm::kF16) {
        w[2 * i] = __half2float(__ushort_as_half(uint16_t(c[i])));
        w[2 * i + 1] = __half2float(__ushort_as_half(uint16_t(c[i] >> 16)));
      } else {
        w[2 * i] = __uint_as_float(c[i] << 16);
        w[2 * i + 1] = __uint_as_float(c[i] & 0xffff0000u);
      }
    }
  }
  __device__ __forceinline__ float dot(const FloatInput<N>& x, float acc) const {
#pragma unroll
    for (int i = 0; i < N; ++i) acc = fmaf(w[i], x.x[i], acc);
    return acc;
  }
};
template <>
struct Unit<WeightForm::kF32> : FloatUnit<WeightForm::kF32, 4> {};
template <>
struct Unit<WeightForm::kF16> : FloatUnit<WeightForm::kF16, 8> {};
template <>
struct Unit<WeightForm::kBf16> : FloatUnit<WeightForm::kBf16, 8> {};

// The epilogue of one product: what is stored.
__device__ __forceinline__ float store_product(const MatvecPart& part, int r, int row, float y, float gate) {
  if (part.w2.form != WeightForm::kNone)
    y = gelu_tanh(y) * gate;
  else if (part.gelu)
    y = gelu_tanh(y);
  if (part.mul) y *= part.mul[int64_t(r) * part.mul_stride + row];
  if (part.residual) y += part.residual[int64_t(r) * part.n_out + row];
  if (part.softcap > 0) y = part.softcap * tanhf(y / part.softcap);
  part.out[int64_t(r) * part.n_out + row] = y;
  return y;
}

}  // namespace kvasir::cuda
