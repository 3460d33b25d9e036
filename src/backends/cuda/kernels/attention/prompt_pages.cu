// Pages to the tiles that prompt.cu multiplies, once for all rows of a micro-batch. A block makes the
// tiles of pages blockIdx.x, + gridDim.x, .. of one KV head and side. Bound: 2 bytes written a value.
#include <algorithm>

#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/attention/prompt.h"
#include "backends/cuda/kernels/attention/tile_pieces.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 512;
constexpr float kSketchUnit = 16;  // of qjl1_256: a norm is at most 65504 sqrt(128)

// One tile, rows before `low` zeros; true when a value of this thread is infinite. kScaled: in units of
// kWideUnit.
template <int D, KvForm F, bool kScaled>
__device__ __forceinline__ bool fill_tile(const uint8_t* data, int low, const LevelBytes& levels,
                                          const KvTables& tables, uint8_t* tile) {
  constexpr int kUnits = D / 8, kBatch = 4;  // loads in flight
  bool infinite = false;
#pragma unroll 1
  for (int first = int(threadIdx.x); first < kPage * kUnits; first += kBatch * kThreads) {
    RawUnit raw[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = first + i * kThreads;
      raw[i] = load_raw<D, F>(data, unit / kUnits, unit % kUnits);
      if constexpr (kScaled) raw[i].scale = __hmul(raw[i].scale, __float2half_rn(1 / kWideUnit));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = first + i * kThreads;
      int4 v = expand_raw<F>(raw[i], levels, tables);
      if (unit / kUnits < low) v = {0, 0, 0, 0};
      infinite |= any_infinite(v);
      *reinterpret_cast<int4*>(tile + tile_place(unit / kUnits, unit % kUnits)) = v;
    }
  }
  return infinite;
}
// Returns the unit its values are in.
template <int D, KvForm F>
__device__ __noinline__ float make_tile(const uint8_t* data, int low, const LevelBytes& levels,
                                        const KvTables& tables, uint8_t* tile) {
  if (!__syncthreads_or(fill_tile<D, F, false>(data, low, levels, tables, tile))) return 1;
  fill_tile<D, F, true>(data, low, levels, tables, tile);
  return kWideUnit;
}

// f16 rows [low, end) (the other side is of codes); zeros elsewhere: what no query sees cannot spread a NaN.
template <int D>
__device__ __forceinline__ float copy_tile(const uint8_t* data, int low, int end, uint8_t* tile) {
  constexpr int kUnits = D / 8, kEach = kPage * kUnits / kThreads;
  int4 v[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int unit = i * kThreads + int(threadIdx.x);
    const int row = unit / kUnits;
    v[i] = row >= low && row < end ? load4(data + unit * 16) : int4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int unit = i * kThreads + int(threadIdx.x);
    *reinterpret_cast<int4*>(tile + tile_place(unit / kUnits, unit % kUnits)) = v[i];
  }
  return 1;
}

// f32 rows [low, end) as two terms of bf16, a tile each, one after the other.
template <int D>
__device__ __forceinline__ void split_tile(const uint8_t* data, int low, int end, uint8_t* tiles) {
  constexpr int kUnits = D / 8;
#pragma unroll 2
  for (int unit = int(threadIdx.x); unit < kPage * kUnits; unit += kThreads) {
    const int row = unit / kUnits;
    float4 x{0, 0, 0, 0}, y = x;
    if (row >= low && row < end) {
      const float4* from = reinterpret_cast<const float4*>(data + unit * 32);
      x = from[0], y = from[1];
    }
    const uint4 first{bf16_pair(x.x, x.y), bf16_pair(x.z, x.w), bf16_pair(y.x, y.y), bf16_pair(y.z, y.w)};
    const uint4 rest{bf16_rest(first.x, x.x, x.y), bf16_rest(first.y, x.z, x.w), bf16_rest(first.z, y.x, y.y),
                     bf16_rest(first.w, y.z, y.w)};
    uint8_t* const to = tiles + tile_place(row, unit % kUnits);
    *reinterpret_cast<uint4*>(to) = first;
    *reinterpret_cast<uint4*>(to + page_tile_bytes(D)) = rest;
  }
}

// qjl1_256 is a product with the projection; `rows`: a tile with padded rows in shared memory.
template <int D>
__device__ __noinline__ float make_sketch_tile(const uint8_t* data, int low, const KvTables& tables,
                                               __half* rows, uint8_t* tile) {
  constexpr int kUnits = D / 8, kNorms = kPage * (D / 128);
  const uint16_t* norms =
      reinterpret_cast<const uint16_t*>(data + RegionPlanes(KvForm::kQjl1_256, D).scales_at());
  const int t = int(threadIdx.x);
  // No value is larger than 1.25 norms.
  const bool large = __syncthreads_or(t < kNorms && __uint_as_float(uint32_t(norms[t]) << 16) > 32768);
  const float unit = large ? kSketchUnit : 1;
  load_sketches<D, kThreads>(data, low, kPage, tables, rows, 1 / unit);
  __syncthreads();
  for (int i = t; i < kPage * kUnits; i += kThreads) {
    const int row = i / kUnits, column = i % kUnits;
    const int4 v = *reinterpret_cast<const int4*>(rows + row * (D + 8) + column * 8);
    *reinterpret_cast<int4*>(tile + tile_place(row, column)) = v;
  }
  return unit;
}

template <int D>
__device__ __forceinline__ float make_tile(KvForm form, const uint8_t* data, int low,
                                           const LevelBytes& levels, const KvTables& tables, __half* rows,
                                           uint8_t* tile) {
  switch (form) {
#define KVASIR_TILE(name) \
  case KvForm::name:      \
    return make_tile<D, KvForm::name>(data, low, levels, tables, tile)
    KVASIR_TILE(kQ8_0);
    KVASIR_TILE(kQ5_0);
    KVASIR_TILE(kQ4_0);
    KVASIR_TILE(kTbq3_0);
    KVASIR_TILE(kTbq4_0);
    KVASIR_TILE(kQ4Polar);
    KVASIR_TILE(kTbq3Tcq);
    KVASIR_TILE(kTbq2H);
    KVASIR_TILE(kTbq3H);
    KVASIR_TILE(kTbq4H);
    KVASIR_TILE(kTbq2Ht);
    KVASIR_TILE(kTbq3Ht);
    KVASIR_TILE(kTbq4Ht);
#undef KVASIR_TILE
    case KvForm::kQjl1_256:
      return make_sketch_tile<D>(data, low, tables, rows, tile);
    default:
      return 1;
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads, 2)
    expand_kernel(const __grid_constant__ KvView kv, const __grid_constant__ StepView step,
                  const __grid_constant__ PageTiles to, int n_pages) {
  extern __shared__ __align__(16) uint8_t memory[];
  let_next_start();
  const int head = int(blockIdx.y), side = int(blockIdx.z);
  const KvForm form = side ? kv.v_form : kv.k_form;
  const bool open = open_page(form);
  if (!open && !to.plain) return;
  LevelBytes levels = level_bytes(form, D);
  if (pair_bytes(form) > 0) {
    copy_pairs(form, memory);
    levels.pairs = reinterpret_cast<const uint32_t*>(memory);
    __syncthreads();
  }
  wait_for_inputs();
  const int32_t* table =
      step.tables + (int64_t(to.sequence) * 4 + (kv.window > 0 ? 2 : 0)) * step.table_stride;
  const int64_t k = region_bytes(kv.k_form, D), v = region_bytes(kv.v_form, D);
  for (int page = int(blockIdx.x); page < n_pages; page += int(gridDim.x)) {
    const int at = to.first + page;
    // Never read here: exact pages of encoded sides, and their newest one.
    const bool exact =
        at * kPage + kPage > to.newest || (at < kv.exact_first && table[step.table_stride + at] >= 0);
    if (table[at] < 0 || (open && exact)) continue;
    const uint8_t* data = kv.pages + table[at] * kv.page_bytes + head * (k + v) + (side ? k : 0);
    const int terms = tile_terms(form);
    const int64_t tile = ((int64_t(page) * kv.n_kv + head) * 2 + side) * terms;
    const int low = max(0, to.oldest - at * kPage), end = to.newest + 1 - at * kPage;
    uint8_t* const rows = to.tiles + tile * page_tile_bytes(D);
    if (terms == 2) {
      split_tile<D>(data, low, end, rows);
      if (threadIdx.x < 2) to.units[tile + threadIdx.x] = 1;
      continue;
    }
    const float unit =
        open ? make_tile<D>(form, data, low, levels, kv.tables, reinterpret_cast<__half*>(memory), rows)
             : copy_tile<D>(data, low, end, rows);
    if (threadIdx.x == 0) to.units[tile] = unit;
  }
}

// Types whose tiles warps make in pieces: what a short block waits for at its start hides behind the many
// others.
constexpr int kPieceWarps = 4;
template <int D>
__global__ void __launch_bounds__(32 * kPieceWarps, 8)
    piece_kernel(const __grid_constant__ KvView kv, const __grid_constant__ StepView step,
                 const __grid_constant__ PageTiles to) {
  constexpr int kTile = Pieces<D>::kTile;
  let_next_start();
  wait_for_inputs();
  const int lane = int(threadIdx.x) % 32, i = int(blockIdx.x) * kPieceWarps + int(threadIdx.x) / 32;
  const int piece = i % kTile, tile = i / kTile, side = tile % 2, head = tile / 2 % kv.n_kv,
            page = to.first + tile / 2 / kv.n_kv;
  const int32_t* table =
      step.tables + (int64_t(to.sequence) * 4 + (kv.window > 0 ? 2 : 0)) * step.table_stride;
  // Never read here: exact pages, and their newest one.
  const bool exact =
      page * kPage + kPage > to.newest || (page < kv.exact_first && table[step.table_stride + page] >= 0);
  if (table[page] < 0 || exact) return;
  const int64_t k = region_bytes(kv.k_form, D), v = region_bytes(kv.v_form, D);
  const bool wide = make_piece<D>(
      side ? kv.v_form : kv.k_form, kv.pages + table[page] * kv.page_bytes + head * (k + v) + (side ? k : 0),
      piece * Pieces<D>::kRows, max(0, to.oldest - page * kPage), lane, to.tiles + tile * page_tile_bytes(D));
  if (piece == 0 && lane == 0) to.units[tile] = wide ? kWideUnit : 1;
}

template <int D>
void run(const Launch& how, const KvView& kv, const StepView& step, const PageTiles& to, int n_pages) {
  if (made_in_pieces(kv.k_form) && made_in_pieces(kv.v_form))
    return launch(how, dim3(unsigned(n_pages * kv.n_kv * 2 * Pieces<D>::kTile / kPieceWarps)),
                  dim3(32 * kPieceWarps), 0, piece_kernel<D>, kv, step, to);
  // A block that copies a table of a trellis type first makes several tiles.
  constexpr int kBlocks = 132 * 4;
  const bool tables = pair_bytes(kv.k_form) + pair_bytes(kv.v_form) > 0;
  const int most = tables ? std::max(1, kBlocks / (kv.n_kv * 2)) : n_pages;
  const auto shared = [](KvForm form) {
    return form == KvForm::kQjl1_256 ? size_t(kPage) * (D + 8) * 2 : size_t(pair_bytes(form));
  };
  launch(how, dim3(unsigned(std::min(n_pages, most)), unsigned(kv.n_kv), 2), dim3(kThreads),
         {std::max(shared(kv.k_form), shared(kv.v_form)), shared(KvForm::kQjl1_256)}, expand_kernel<D>, kv,
         step, to, n_pages);
}

}  // namespace

bool needs_page_tiles(const KvView& kv) {
  return open_page(kv.k_form) || open_page(kv.v_form) || tile_terms(kv.k_form) > 1;
}

void expand_pages(const Launch& how, const KvView& kv, const StepView& step, const PageTiles& to,
                  int n_pages) {
  with_head_size<256, 512>("page tiles", kv.head_dim,
                           [&](auto size) { run<size.value>(how, kv, step, to, n_pages); });
}

}  // namespace kvasir::cuda
