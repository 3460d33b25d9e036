// Regions of the types that have no fast loader of their own (attention/tiles.cuh) to tiles of 64 f16 rows,
// eight values at a time; and single values in f32, for the kernel without tiles.
#pragma once
#include "backends/cuda/kernels/kv_forms/expand.cuh"
#include "backends/cuda/kernels/mma.cuh"
#include "formats/qjl1_256.h"

namespace kvasir::cuda {

// Values 8 column .. 8 column + 7 of a row, as they lie.
struct RawUnit {
  uint32_t codes, more;  // of a trellis type: what is before them; q5_0: their fifth bits
  __half scale;
  uint32_t next = 0;  // until join_unit(): of 3 bits, which may lie in two words, the second
};

// Where the three bytes of eight values of 3 bits begin, from a multiple of four on.
template <int D, KvForm F>
constexpr int byte_of(int row, int column) {
  return F == KvForm::kTbq3Tcq
             ? (row * (D / 128) + column / 16) * kTcqBlockBytes + kTcqStreamAt + 3 * (column % 16)
             : (row * (D / 8) + column) * 3;
}

// What load_unit() loads, and nothing that waits for it: a batch of units is on its way before the first is
// joined. (Joined where they were loaded, behind a condition, each of a batch was waited for.)
template <int D, KvForm F>
__device__ __forceinline__ RawUnit load_parts(const uint8_t* data, int row, int column) {
  constexpr RegionPlanes kPlanes(F, D);
  constexpr int b = code_bits(F), kEach = scale_block(F) == 0 ? D : scale_block(F);  // values a scale
  RawUnit raw{0, 0, {}};
  if constexpr (F == KvForm::kTbq3Tcq)
    raw.scale = *reinterpret_cast<const __half*>(data + (row * (D / 128) + column / 16) * kTcqBlockBytes);
  else
    raw.scale = reinterpret_cast<const __half*>(
        data + kPlanes.scales_at())[row * scales_of_row(F, D) + column * 8 / kEach];
  if constexpr (b == 3) {
    // The second word is there, too: scales follow the codes of a region, two bytes those of a block.
    const uint32_t* words = reinterpret_cast<const uint32_t*>(data) + byte_of<D, F>(row, column) / 4;
    raw.codes = words[0], raw.next = words[1];
  } else if constexpr (b == 2) {
    raw.codes = reinterpret_cast<const uint16_t*>(data)[row * (D / 8) + column];
  } else {
    raw.codes = reinterpret_cast<const uint32_t*>(data)[row * (D / 8) + column];
  }
  if constexpr (trellis(F)) {  // a ring: what is before its first codes is its end
    const int previous = row * (D / 8) + (column + D / 8 - 1) % (D / 8);
    if constexpr (b == 2) raw.more = reinterpret_cast<const uint16_t*>(data)[previous];
    if constexpr (b == 3) raw.more = data[previous * 3 + 2];
    if constexpr (b == 4) raw.more = reinterpret_cast<const uint32_t*>(data)[previous];
  }
  if constexpr (F == KvForm::kQ5_0) raw.more = (data + kPlanes.high_at())[row * (D / 8) + column];
  return raw;
}
template <int D, KvForm F>
__device__ __forceinline__ RawUnit join_unit(RawUnit raw, int row, int column) {
  constexpr int b = code_bits(F);
  if constexpr (b == 3) {
    raw.codes = __funnelshift_r(raw.codes, raw.next, byte_of<D, F>(row, column) % 4 * 8);
    if constexpr (F != KvForm::kTbq3Tcq) raw.codes &= 0xffffff;
  }
  if constexpr (trellis(F)) raw.more >>= b == 2 ? 10 : b == 3 ? 2 : 24;
  return raw;
}
template <int D, KvForm F>
__device__ __forceinline__ RawUnit load_unit(const uint8_t* data, int row, int column) {
  return join_unit<D, F>(load_parts<D, F>(data, row, column), row, column);
}

template <KvForm F>
__device__ __forceinline__ int4 expand_unit(const RawUnit& raw, const LevelBytes& levels,
                                            const KvTables& tables) {
  if constexpr (F == KvForm::kTbq3Tcq) {
    const float d = __half2float(raw.scale);
    uint32_t out[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const __half2 pair = __floats2half2_rn(tables.tcq_level[raw.codes >> (6 * k) & 511] * d,
                                             tables.tcq_level[raw.codes >> (6 * k + 3) & 511] * d);
      out[k] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    return {int(out[0]), int(out[1]), int(out[2]), int(out[3])};
  }
  if constexpr (trellis(F)) return expand_trellis<code_bits(F)>(raw.codes, raw.more, raw.scale, levels);
  if constexpr (F == KvForm::kQ4_0) return expand_steps<8>(raw.codes, 0, raw.scale);
  if constexpr (F == KvForm::kQ5_0) return expand_steps<16>(raw.codes, raw.more, raw.scale);
  if constexpr (!trellis(F) && F != KvForm::kTbq3Tcq && F != KvForm::kQ4_0 && F != KvForm::kQ5_0)
    return scale_halves(expand_codes<code_bits(F)>(levels, raw.codes), raw.scale);
}

__device__ __forceinline__ bool any_infinite(int4 v) {
  const auto of = [](int two) { return ((uint32_t(two) & 0x7fff7fffu) + 0x04000400u) & 0x80008000u; };
  return (of(v.x) | of(v.y) | of(v.z) | of(v.w)) != 0;
}

// Eight values of any type but qjl1_256, also of those with a loader of their own; to be joined.
template <int D, KvForm F>
__device__ __forceinline__ RawUnit load_raw_parts(const uint8_t* data, int row, int column) {
  const int unit = row * (D / 8) + column;
  if constexpr (F == KvForm::kQ8_0) {
    const uint2 codes = reinterpret_cast<const uint2*>(data)[unit];
    return {codes.x, codes.y,
            reinterpret_cast<const __half*>(data + kRegionRows * D)[row * (D / 32) + column / 4]};
  } else if constexpr (F == KvForm::kTbq2H) {
    return {reinterpret_cast<const uint16_t*>(data)[unit], 0,
            reinterpret_cast<const __half*>(data + kRegionRows * (D / 4))[row]};
  } else {
    return load_parts<D, F>(data, row, column);
  }
}
template <int D, KvForm F>
__device__ __forceinline__ RawUnit load_raw(const uint8_t* data, int row, int column) {
  return join_unit<D, F>(load_raw_parts<D, F>(data, row, column), row, column);
}
template <KvForm F>
__device__ __forceinline__ int4 expand_raw(const RawUnit& raw, const LevelBytes& levels,
                                           const KvTables& tables) {
  if constexpr (F == KvForm::kQ8_0) return expand_int8({raw.codes, raw.more}, raw.scale);
  if constexpr (F != KvForm::kQ8_0) return expand_unit<F>(raw, levels, tables);
}

// Bytes of a type's TrellisPairs.
constexpr int pair_bytes(KvForm form) {
  return !trellis(form) ? 0 : code_bits(form) == 2 ? 4096 : code_bits(form) == 3 ? 16384 : 32768;
}

// Copies them to shared memory, asynchronously.
template <int b>
__device__ __forceinline__ void copy_pairs(uint8_t* to) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(kTrellisPairs<b>.pair);
  for (int i = int(threadIdx.x) * 16; i < int(sizeof(TrellisPairs<b>)); i += int(blockDim.x) * 16)
    copy_async(to + i, from + i);
}
inline __device__ __noinline__ void copy_pairs(KvForm form, uint8_t* to) {
  if (form == KvForm::kTbq2Ht) copy_pairs<2>(to);
  if (form == KvForm::kTbq3Ht) copy_pairs<3>(to);
  if (form == KvForm::kTbq4Ht) copy_pairs<4>(to);
  commit_copies();
  wait_copies<0>();
}

// Rows [low, high) of a region into the tile (row stride D + 8), zeros elsewhere, times `by`; true when a
// value of this thread is infinite.
template <int D, int kThreads, KvForm F>
__device__ __noinline__ bool load_units(const uint8_t* data, int low, int high, const LevelBytes& levels,
                                        const KvTables& tables, __half by, __half* tile) {
  constexpr int kEach = kRegionRows * D / 8 / kThreads, kBatch = kEach < 8 ? kEach : 8;
  static_assert(kEach % kBatch == 0);
  bool infinite = false;
#pragma unroll 1
  for (int first = 0; first < kEach; first += kBatch) {
    RawUnit raw[kBatch];  // a batch of loads in flight at a time
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = (first + i) * kThreads + int(threadIdx.x);
      raw[i] = load_unit<D, F>(data, unit / (D / 8), unit % (D / 8));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = (first + i) * kThreads + int(threadIdx.x), row = unit / (D / 8),
                column = unit % (D / 8);
      raw[i].scale = __hmul(raw[i].scale, by);
      int4 v = expand_unit<F>(raw[i], levels, tables);
      if (row < low || row >= high) v = {0, 0, 0, 0};
      infinite |= any_infinite(v);
      *reinterpret_cast<int4*>(tile + row * (D + 8) + column * 8) = v;
    }
  }
  return infinite;
}

// Two signs as f16, set: +1.
__device__ __forceinline__ uint32_t sign_pair(uint32_t unset, int at) {
  const uint32_t pair = unset >> at;
  return 0x3c003c00u | (pair & 1u) << 15 | (pair & 2u) << 30;
}

// qjl1_256: a row is sqrt(pi / 2) / 256 norm P (+-1), a product of the signs with the projection. A warp
// takes eight dimensions of all rows at a time. Values are multiplied by `unit`.
template <int D, int kThreads>
__device__ __noinline__ bool load_sketches(const uint8_t* data, int low, int high, const KvTables& tables,
                                           __half* tile, float unit = 1) {
  constexpr RegionPlanes kPlanes(KvForm::kQjl1_256, D);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  bool infinite = false;
  for (int n = warp; n < D / 8; n += kThreads / 32) {
    const int block = n / 16;
    const uint16_t* p = tables.projection_half + (n % 16 * 8 + lane / 4) * formats::kSketch + lane % 4 * 2;
    const uint32_t* signs = reinterpret_cast<const uint32_t*>(data) + lane / 4 * (D / 16) + block * 8;
    float c[4][4] = {};
#pragma unroll 2
    for (int k = 0; k < 8; ++k) {
      uint32_t b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = *reinterpret_cast<const uint32_t*>(p + 32 * k + 8 * i);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint32_t upper = ~signs[m * 16 * (D / 16) + k], lower = ~signs[(m * 16 + 8) * (D / 16) + k];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = 16 * half + lane % 4 * 2;
          const uint32_t a[4] = {sign_pair(upper, at), sign_pair(lower, at), sign_pair(upper, at + 8),
                                 sign_pair(lower, at + 8)};
          multiply(c[m], a, b[2 * half], b[2 * half + 1]);
        }
      }
    }
    const uint16_t* norms = reinterpret_cast<const uint16_t*>(data + kPlanes.scales_at());
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = m * 16 + 8 * i + lane / 4;
        const bool valid = row >= low && row < high;
        const float norm = __uint_as_float(uint32_t(norms[row * (D / 128) + block]) << 16);
        const float scale = formats::kSketchScale * norm * unit;
        const __half2 v =
            valid ? __floats2half2_rn(scale * c[m][2 * i], scale * c[m][2 * i + 1]) : __half2{0, 0};
        infinite |= __hisinf(__low2half(v)) || __hisinf(__high2half(v));
        *reinterpret_cast<__half2*>(tile + row * (D + 8) + n * 8 + lane % 4 * 2) = v;
      }
  }
  return infinite;
}

template <int D, int kThreads>
__device__ __noinline__ bool load_other(KvForm form, const uint8_t* data, int low, int high,
                                        const LevelBytes& levels, const KvTables& tables, __half by,
                                        __half* tile) {
  switch (form) {
#define KVASIR_LOAD(name) \
  case KvForm::name:      \
    return load_units<D, kThreads, KvForm::name>(data, low, high, levels, tables, by, tile)
    KVASIR_LOAD(kQ5_0);
    KVASIR_LOAD(kQ4_0);
    KVASIR_LOAD(kTbq3_0);
    KVASIR_LOAD(kTbq4_0);
    KVASIR_LOAD(kTbq2Ht);
    KVASIR_LOAD(kTbq3Ht);
    KVASIR_LOAD(kTbq4Ht);
    default:
      break;
  }
  if constexpr (D % 128 == 0) {
    switch (form) {
      KVASIR_LOAD(kQ4Polar);
      KVASIR_LOAD(kTbq3Tcq);
#undef KVASIR_LOAD
      case KvForm::kQjl1_256:
        return load_sketches<D, kThreads>(data, low, high, tables, tile, __half2float(by));
      default:
        break;
    }
  }
  return false;
}

// Code i of a row.
template <int b>
__device__ __forceinline__ uint32_t code_at(const uint8_t* row, int i) {
  const int bit = b * i;
  uint32_t bits = row[bit / 8];
  if (bit % 8 + b > 8) bits |= uint32_t(row[bit / 8 + 1]) << 8;
  return bits >> (bit % 8) & ((1u << b) - 1);
}

template <int b>
__device__ __forceinline__ float trellis_value(const uint8_t* row, int d, int i) {
  constexpr int kSymbols = b == 2 ? 4 : 3;
  uint32_t window = 0;
#pragma unroll
  for (int k = 0; k < kSymbols; ++k) window |= code_at<b>(row, (i + d - kSymbols + 1 + k) % d) << (b * k);
  return __half2float(__ushort_as_half(trellis_level<b>(window, trellis_levels<b>())));
}

// Value i of row `token`, as the scalar codec gives it; not of qjl1_256.
__device__ inline float coded_value(KvForm form, const uint8_t* data, int d, int token, int i,
                                    const KvTables& tables) {
  const RegionPlanes planes(form, d);
  const uint8_t* row = data + int64_t(token) * planes.codes;
  if (form == KvForm::kTbq3Tcq) {
    const uint8_t* block = row + i / 128 * kTcqBlockBytes;
    const int bit = 3 * (i % 128);
    const uint32_t window =
        uint32_t(block[kTcqStreamAt + bit / 8]) | uint32_t(block[kTcqStreamAt + bit / 8 + 1]) << 8;
    return tables.tcq_level[window >> (bit % 8) & 511] *
           __half2float(*reinterpret_cast<const __half*>(block));
  }
  const int n = scales_of_row(form, d);
  const float scale =
      __half2float(reinterpret_cast<const __half*>(data + planes.scales_at())[token * n + i / (d / n)]);
  switch (form) {
    case KvForm::kQ8_0:
      return scale * float(int8_t(row[i]));
    case KvForm::kQ5_0: {
      const uint32_t high = (data + planes.high_at())[token * planes.high + i / 8] >> (i % 8) & 1u;
      return scale * float(int(code_at<4>(row, i) | high << 4) - 16);
    }
    case KvForm::kQ4_0:
      return scale * float(int(code_at<4>(row, i)) - 8);
    case KvForm::kTbq3_0:
      return scale * kCodecTables.tbq3.level[code_at<3>(row, i)];
    case KvForm::kTbq4_0:
      return scale * kCodecTables.tbq4.level[code_at<4>(row, i)];
    case KvForm::kQ4Polar:
      return scale * formats::kInverseRoot128 * kCodecTables.polar.level[code_at<4>(row, i)];
    case KvForm::kTbq2H:
      return scale * kHeadTables.level[0][size_index(d)][code_at<2>(row, i)];
    case KvForm::kTbq3H:
      return scale * kHeadTables.level[1][size_index(d)][code_at<3>(row, i)];
    case KvForm::kTbq4H:
      return scale * kHeadTables.level[2][size_index(d)][code_at<4>(row, i)];
    case KvForm::kTbq2Ht:
      return scale * trellis_value<2>(row, d, i);
    case KvForm::kTbq3Ht:
      return scale * trellis_value<3>(row, d, i);
    case KvForm::kTbq4Ht:
      return scale * trellis_value<4>(row, d, i);
    default:
      return 0;
  }
}

}  // namespace kvasir::cuda
