// Tiles of encoded pages in pieces that a warp makes by itself, of types that a few registers expand.
#pragma once
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/attention/wgmma.cuh"

namespace kvasir::cuda {

constexpr bool made_in_pieces(KvForm form) {
  return open_page(form) && !trellis(form) && form != KvForm::kTbq3Tcq && form != KvForm::kQjl1_256;
}
// Of a tile whose values f16 cannot hold: levels are below 4, scales are f16.
inline constexpr float kWideUnit = 4;

// A warp makes a piece: 512 times eight values.
template <int D>
struct Pieces {
  static constexpr int kRows = 4096 / D, kTile = kPage / kRows;  // of a piece; of a tile
};

// The levels of a type with a code book, two at a time.
template <int D, KvForm F>
__device__ __forceinline__ LevelBytes levels_of() {
  LevelBytes out{{0, 0}, {0, 0}};
  const BookLevels book = book_levels(F, D);
  if (!book.level) return out;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const float* x = book.level + 2 * i;
    const uint32_t a = as_word(__floats2half2_rn(x[0] * book.unit, x[1] * book.unit)),
                   b = as_word(__floats2half2_rn(x[2] * book.unit, x[3] * book.unit));
    out.low[i / 2] = __byte_perm(a, b, 0x6420);
    out.high[i / 2] = __byte_perm(a, b, 0x7531);
  }
  return out;
}

// Scales of a region where each row has one: a lane's are those of rows 2 lane and 2 lane + 1.
template <int D, KvForm F>
__device__ __forceinline__ uint32_t row_scales(const uint8_t* region, int lane) {
  return reinterpret_cast<const uint32_t*>(region + RegionPlanes(F, D).scales_at())[lane];
}
// Can a value of this region be beyond f16? Decided by its scales alone, so that every piece says the same.
template <int D, KvForm F>
__device__ __forceinline__ bool is_wide(const uint8_t* region, int lane) {
  // The largest magnitude of a level is below 2^kLog.
  constexpr int kLog = F == KvForm::kQ8_0 ? 7 : F == KvForm::kQ5_0 ? 4 : F == KvForm::kQ4_0 ? 3 : 2;
  if constexpr (F == KvForm::kQ4Polar) return false;
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < scales_of_row(F, D); ++i)
    most = __vmaxu2(most, row_scales<D, F>(region, 32 * i + lane) & 0x7fff7fffu);
  constexpr uint32_t kFits = 0x7bff - (kLog << 10);
  return __any_sync(~0u, (most & 0xffff) > kFits || most >> 16 > kFits);
}

// Rows [first, first + kRows) of a region, `first` even; those before `low` are zeros. True: in units of
// kWideUnit.
template <int D, KvForm F>
__device__ __forceinline__ bool make_piece(const uint8_t* region, int first, int low, int lane,
                                           uint8_t* tile) {
  constexpr bool kOneScale = scale_block(F) == 0;
  constexpr int kUnits = D / 8, kEach = Pieces<D>::kRows * kUnits / 32,
                kBatch = kOneScale ? 8 : 4;  // loads in flight
  const uint32_t scales = kOneScale ? row_scales<D, F>(region, lane) : 0;
  const LevelBytes levels = levels_of<D, F>();
  const bool wide = is_wide<D, F>(region, lane), cut = first < low;
  const __half by = __float2half_rn(wide ? 1 / kWideUnit : 1);
#pragma unroll 1
  for (int n = 0; n < kEach; n += kBatch) {
    const auto row_of = [&](int i) { return first + int(32u * uint32_t(n + i) / kUnits); };
    const auto column_of = [&](int i) { return int((32u * uint32_t(n + i) + uint32_t(lane)) % kUnits); };
    RawUnit raw[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) raw[i] = load_raw_parts<D, F>(region, row_of(i), column_of(i));
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = row_of(i), column = column_of(i);
      RawUnit unit = join_unit<D, F>(raw[i], row, column);
      if constexpr (kOneScale) {
        const uint32_t two = __shfl_sync(~0u, scales, row / 2);
        unit.scale = __ushort_as_half(uint16_t((row - first) % 2 ? two >> 16 : two));
      }
      unit.scale = __hmul(unit.scale, by);
      int4 v = expand_raw<F>(unit, levels, {});
      if (cut && row < low) v = {0, 0, 0, 0};
      *reinterpret_cast<int4*>(tile + tile_place(row, column)) = v;
    }
  }
  return wide;
}

template <int D>
__device__ __forceinline__ bool make_piece(KvForm form, const uint8_t* region, int first, int low, int lane,
                                           uint8_t* tile) {
  switch (form) {
#define KVASIR_PIECE(name) \
  case KvForm::name:       \
    return make_piece<D, KvForm::name>(region, first, low, lane, tile)
    KVASIR_PIECE(kQ8_0);
    KVASIR_PIECE(kQ5_0);
    KVASIR_PIECE(kQ4_0);
    KVASIR_PIECE(kTbq3_0);
    KVASIR_PIECE(kTbq4_0);
    KVASIR_PIECE(kQ4Polar);
    KVASIR_PIECE(kTbq2H);
    KVASIR_PIECE(kTbq3H);
    KVASIR_PIECE(kTbq4H);
#undef KVASIR_PIECE
    default:
      return false;
  }
}

}  // namespace kvasir::cuda
