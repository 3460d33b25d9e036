// The head-wide types' constants on the device: signs of the rotation and levels, from the same headers as
// the scalar codec; and the rotations of every type by a warp.
#pragma once
#include "backends/cuda/kernels/common.cuh"
#include "formats/basis.h"
#include "formats/tbq_h.h"

namespace kvasir::cuda {

struct HeadTables {
  uint32_t signs[2][16];  // keys, values: bit i % 32 of word i / 32
  float level[3][4][16];  // bits - 2, head size 64 128 256 512
};

template <int b>
constexpr void fill_levels(HeadTables& t) {
  for (int s = 0; s < 4; ++s) {
    const auto book = formats::mirror<b>(formats::head_levels<b>()[s]);
    for (int i = 0; i < 16; ++i) t.level[b - 2][s][i] = i < (1 << b) ? book.level[size_t(i)] : 0.0f;
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

template <int D>
inline constexpr float kHeadNorm = D == 64    ? 0.125f
                                   : D == 128 ? 0.08838834764831845f
                                   : D == 256 ? 0.0625f
                                              : 0.04419417382415922f;

// A lane's E values that follow each other, 16 bytes at a time.
template <int E>
__device__ __forceinline__ void load_values(const float* from, float (&x)[E]) {
  if constexpr (E == 1) {
    x[0] = *from;
  } else if constexpr (E == 2) {
    const float2 v = *reinterpret_cast<const float2*>(from);
    x[0] = v.x, x[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < E; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + i);
      x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
  }
}

// H_E x of a lane's own values. Loops of known length: others stay loops at 16 values, and x in memory.
template <int E>
__device__ __forceinline__ void lane_hadamard(float (&x)[E]) {
#pragma unroll
  for (int bit = 1; bit < E; bit *= 2)
#pragma unroll
    for (int pair = 0; pair < E / 2; ++pair) {
      const int low = pair / bit * (2 * bit) + pair % bit;
      const float a = x[low], b = x[low + bit];
      x[low] = __fadd_rn(a, b);
      x[low + bit] = __fsub_rn(a, b);
    }
}

// A step of the transform between lanes that are `o` apart. A product with 1 or -1 and a sum round once.
template <int E>
__device__ __forceinline__ void exchange(float (&x)[E], int lane, int o) {
  const float sign = (lane & o) ? -1.0f : 1.0f;
#pragma unroll
  for (int i = 0; i < E; ++i) x[i] = __fmaf_rn(sign, x[i], __shfl_xor_sync(~0u, x[i], o));
}

// H_d x / sqrt(d) of a head spread over a warp: lane l holds values l * E .. l * E + E - 1. Adds in the
// scalar codec's order.
template <int E>
__device__ __forceinline__ void warp_hadamard(float (&x)[E], int lane) {
  lane_hadamard(x);
#pragma unroll
  for (int o = 1; o < 32; o *= 2) exchange(x, lane, o);
#pragma unroll
  for (int i = 0; i < E; ++i) x[i] = __fmul_rn(x[i], kHeadNorm<32 * E>);
}

// Signs of E values from `first` on, which lie in one word: bit i of value i.
template <int E>
__device__ __forceinline__ uint32_t signs_from(int side, int first) {
  return kHeadTables.signs[side][first / 32] >> (first % 32);
}
template <int E>
__device__ __forceinline__ void flip_signs(uint32_t signs, float (&x)[E]) {
#pragma unroll
  for (int i = 0; i < E; ++i)
    x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (signs << (31 - i) & 0x80000000u));
}
template <int E>
__device__ __forceinline__ void warp_rotate(int side, float (&x)[E], int lane) {
  flip_signs(signs_from<E>(side, lane * E), x);
  warp_hadamard(x, lane);
}
template <int E>
__device__ __forceinline__ void warp_unrotate(int side, float (&x)[E], int lane) {
  warp_hadamard(x, lane);
  flip_signs(signs_from<E>(side, lane * E), x);
}

// H x / sqrt(block) of every block of a head (32 or 128 values; the head is a multiple), as warp_hadamard.
template <int E>
__device__ __forceinline__ void warp_block_hadamard(int block, float (&x)[E], int lane) {
  lane_hadamard(x);
  for (int o = 1; o < block / E; o *= 2) exchange(x, lane, o);
  const float norm = block == 32 ? 0.1767766952966369f : 0.08838834764831845f;
#pragma unroll
  for (int i = 0; i < E; ++i) x[i] = __fmul_rn(x[i], norm);
}

// Signs of the blocks: which of the vectors of formats/basis.h.
enum class BlockSigns { kOf32, kFirst, kSecond };
template <int E>
__device__ __forceinline__ void flip_blocks(BlockSigns which, float (&x)[E], int lane) {
  const bool upper = (lane * E & 64) != 0;  // E values of a lane lie on one side of 64
  constexpr uint64_t k32 = uint64_t(formats::kSigns32) << 32 | formats::kSigns32;
  constexpr uint64_t kFirst[2] = {formats::kSigns1[0], formats::kSigns1[1]},
                     kSecond[2] = {formats::kSigns2[0], formats::kSigns2[1]};
  const uint64_t word = which == BlockSigns::kOf32    ? k32
                        : which == BlockSigns::kFirst ? (upper ? kFirst[1] : kFirst[0])
                                                      : (upper ? kSecond[1] : kSecond[0]);
#pragma unroll
  for (int i = 0; i < E; ++i)
    x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (uint32_t(word >> ((lane * E + i) % 64)) & 1u) << 31);
}

template <int E>
__device__ __forceinline__ void warp_to_basis(KvBasis basis, int side, float (&x)[E], int lane) {
  if (basis == KvBasis::kModel) return;
  if (basis == KvBasis::kHeadWide) return warp_rotate(side, x, lane);
  if (basis != KvBasis::kBlock128)
    flip_blocks(basis == KvBasis::kBlock32 ? BlockSigns::kOf32 : BlockSigns::kFirst, x, lane);
  warp_block_hadamard(basis == KvBasis::kBlock32 ? 32 : 128, x, lane);
  if (basis == KvBasis::kSignedBlock128) flip_blocks(BlockSigns::kSecond, x, lane);
}
template <int E>
__device__ __forceinline__ void warp_from_basis(KvBasis basis, int side, float (&x)[E], int lane) {
  if (basis == KvBasis::kModel) return;
  if (basis == KvBasis::kHeadWide) return warp_unrotate(side, x, lane);
  if (basis == KvBasis::kSignedBlock128) flip_blocks(BlockSigns::kSecond, x, lane);
  warp_block_hadamard(basis == KvBasis::kBlock32 ? 32 : 128, x, lane);
  if (basis != KvBasis::kBlock128)
    flip_blocks(basis == KvBasis::kBlock32 ? BlockSigns::kOf32 : BlockSigns::kFirst, x, lane);
}

}  // namespace kvasir::cuda
