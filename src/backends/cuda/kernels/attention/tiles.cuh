// From a region of a page to a tile of 64 f16 rows in shared memory, 8 values (one 16-byte store) at a time.
#pragma once
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/kv_forms/load.cuh"

namespace kvasir::cuda {

// Rows [low, high) of the region into the tile (row stride D + 8); the others are zeroed, so that what no
// query sees cannot spread a NaN. f16 rows travel asynchronously: commit and wait for them. Others come times
// `by`, a power of two; true when a value of this thread is infinite.
template <int D, int kThreads, KvForm F>
__device__ __forceinline__ bool load_form(const Region& from, int low, int high, const LevelBytes& levels,
                                          __half by, __half* tile) {
  constexpr int kUnits = kPage * D / 8, kEach = kUnits / kThreads, kBatch = kEach < 8 ? kEach : 8;
  static_assert(kUnits % kThreads == 0 && kEach % kBatch == 0);
  constexpr int b = F == KvForm::kTbq2H ? 2 : F == KvForm::kTbq3H ? 3 : 4;
  if constexpr (F == KvForm::kF16) {
#pragma unroll 2
    for (int unit = int(threadIdx.x); unit < kUnits; unit += kThreads) {
      const int row = unit / (D / 8), column = unit % (D / 8);
      copy_async(tile + row * (D + 8) + column * 8, from.data + int64_t(unit) * 16, row >= low && row < high);
    }
    return false;
  } else {
    bool infinite = false;
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
        scale[i] = __hmul(scale[i], by);
        if constexpr (F == KvForm::kQ8_0)
          v = expand_int8(raw[i], scale[i]);
        else
          v = scale_halves(expand_codes<b>(levels, raw[i].x), scale[i]);
        infinite |= any_infinite(v);
        *reinterpret_cast<int4*>(tile + row * (D + 8) + column * 8) = v;
      }
    }
    return infinite;
  }
}

// Not inlined: every launch of a decode step waits for its code, so three unrolled copies cost more than a
// call (half of the samples of a launch waited for an instruction; 15.5 us before, 9.4 after).
template <int D, int kThreads>
__device__ __noinline__ bool load_tile(const Region& from, int low, int high, const LevelBytes& levels,
                                       const KvTables& tables, float unit, __half* tile) {
  const __half by = __float2half_rn(1 / unit);
  switch (from.form) {
    case KvForm::kF16:
      return load_form<D, kThreads, KvForm::kF16>(from, low, high, levels, by, tile);
    case KvForm::kQ8_0:
      return load_form<D, kThreads, KvForm::kQ8_0>(from, low, high, levels, by, tile);
    case KvForm::kTbq2H:
      return load_form<D, kThreads, KvForm::kTbq2H>(from, low, high, levels, by, tile);
    case KvForm::kTbq3H:
      return load_form<D, kThreads, KvForm::kTbq3H>(from, low, high, levels, by, tile);
    case KvForm::kTbq4H:
      return load_form<D, kThreads, KvForm::kTbq4H>(from, low, high, levels, by, tile);
    default:
      return load_other<D, kThreads>(from.form, from.data, low, high, levels, tables, by, tile);
  }
}

}  // namespace kvasir::cuda
