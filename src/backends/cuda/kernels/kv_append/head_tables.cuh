// The head-wide types' constants on the device: signs of the rotation, levels and midpoints, from the same
// headers as the scalar codec; and the rotation itself by a warp.
#pragma once
#include "backends/cuda/kernels/common.cuh"
#include "formats/tbq_h.h"

namespace kvasir::cuda {

struct HeadTables {
  uint32_t signs[2][16];  // keys, values: bit i % 32 of word i / 32
  float level[3][4][16];  // bits - 2, head size 64 128 256 512
  float midpoint[3][4][16];
};

template <int b>
constexpr void fill_levels(HeadTables& t) {
  for (int s = 0; s < 4; ++s) {
    const auto book = formats::mirror<b>(formats::head_levels<b>()[s]);
    for (int i = 0; i < 16; ++i) t.level[b - 2][s][i] = i < (1 << b) ? book.level[size_t(i)] : 0.0f;
    for (int i = 0; i < 16; ++i) t.midpoint[b - 2][s][i] = i + 1 < (1 << b) ? book.midpoint[size_t(i)] : 0.0f;
  }
}

constexpr HeadTables make_head_tables() {
  HeadTables t{};
  for (int side = 0; side < 2; ++side) {
    uint64_t state = formats::kHeadWideSeed + uint64_t(side);
    for (int word = 0; word < 8; ++word) {
      state += 0x9e3779b97f4a7c15;
      uint64_t z = state;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      z ^= z >> 31;
      t.signs[side][2 * word] = uint32_t(z);
      t.signs[side][2 * word + 1] = uint32_t(z >> 32);
    }
  }
  fill_levels<2>(t);
  fill_levels<3>(t);
  fill_levels<4>(t);
  return t;
}

static __constant__ HeadTables kHeadTables = make_head_tables();

__host__ __device__ constexpr int size_index(int d) { return d <= 64 ? 0 : d <= 128 ? 1 : d <= 256 ? 2 : 3; }

__device__ __forceinline__ float flip_sign(int side, int i, float v) {
  return __uint_as_float(__float_as_uint(v) ^ (((kHeadTables.signs[side][i / 32] >> (i % 32)) & 1u) << 31));
}

// H_d x / sqrt(d) of a head spread over a warp: lane l holds values l * E .. l * E + E - 1. Adds in the
// scalar codec's order.
template <int E>
__device__ __forceinline__ void warp_hadamard(float (&x)[E], int lane) {
#pragma unroll
  for (int distance = 1; distance < E; distance *= 2)
#pragma unroll
    for (int start = 0; start < E; start += 2 * distance)
#pragma unroll
      for (int i = 0; i < distance; ++i) {
        const float a = x[start + i], b = x[start + i + distance];
        x[start + i] = __fadd_rn(a, b);
        x[start + i + distance] = __fsub_rn(a, b);
      }
#pragma unroll
  for (int o = 1; o < 32; o *= 2)
#pragma unroll
    for (int i = 0; i < E; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], o);
      x[i] = (lane & o) ? __fsub_rn(other, x[i]) : __fadd_rn(x[i], other);
    }
  constexpr float kNorm = E == 2   ? 0.125f
                          : E == 4 ? 0.08838834764831845f
                          : E == 8 ? 0.0625f
                                   : 0.04419417382415922f;
#pragma unroll
  for (int i = 0; i < E; ++i) x[i] = __fmul_rn(x[i], kNorm);
}

template <int E>
__device__ __forceinline__ void warp_rotate(int side, float (&x)[E], int lane) {
#pragma unroll
  for (int i = 0; i < E; ++i) x[i] = flip_sign(side, lane * E + i, x[i]);
  warp_hadamard(x, lane);
}
template <int E>
__device__ __forceinline__ void warp_unrotate(int side, float (&x)[E], int lane) {
  warp_hadamard(x, lane);
#pragma unroll
  for (int i = 0; i < E; ++i) x[i] = flip_sign(side, lane * E + i, x[i]);
}

}  // namespace kvasir::cuda
