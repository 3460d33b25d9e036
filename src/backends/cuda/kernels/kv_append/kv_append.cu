// Compiled without fused multiply-add: encoded bytes must be the scalar codec's.
#include <algorithm>

#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/wgmma.cuh"
#include "backends/cuda/kernels/kv_append/fits.cuh"
#include "backends/cuda/kernels/kv_append/head_tables.cuh"
#include "backends/cuda/kernels/kv_append/kv_append.h"
#include "backends/cuda/kernels/kv_forms/codec.cuh"
#include "backends/cuda/kernels/kv_forms/load.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kPage = graph::kPageTokens;

// Where one head's region lies.
__device__ uint8_t* region(const KvView& kv, int page, int head, int side) {
  const int64_t k = region_bytes(kv.k_form, kv.head_dim), v = region_bytes(kv.v_form, kv.head_dim);
  return kv.pages + page * kv.page_bytes + head * (k + v) + (side ? k : 0);
}
__device__ __half* exact_region(const KvView& kv, int index, int head, int side) {
  const int64_t one = int64_t(kPage) * kv.head_dim;
  const int64_t k = open_page(kv.k_form) ? one : 0, v = open_page(kv.v_form) ? one : 0;
  uint8_t* page = index < kv.n_exact ? kv.exact + index * kv.exact_page_bytes
                                     : kv.step_exact + int64_t(index - kv.n_exact) * kv.exact_page_bytes;
  return reinterpret_cast<__half*>(page) + head * (k + v) + (side ? k : 0);
}
__device__ const int32_t* table(const StepView& step, const KvView& kv, int seq, bool exact) {
  return step.tables + (int64_t(seq) * 4 + (kv.window > 0 ? 2 : 0) + (exact ? 1 : 0)) * step.table_stride;
}

// Shared memory of a warp that encodes rows without a search.
struct QuickScratch {
  alignas(16) uint16_t row[512];
  uint8_t code[512];
};

// A lane's E values that follow each other, 16 bytes at a time.
template <int E>
__device__ __forceinline__ void store_values(float* to, const float (&x)[E]) {
  if constexpr (E == 2) {
    *reinterpret_cast<float2*>(to) = {x[0], x[1]};
  } else {
#pragma unroll
    for (int i = 0; i < E; i += 4) *reinterpret_cast<float4*>(to + i) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
  }
}
// As f16; true when all are finite.
template <int E>
__device__ __forceinline__ bool store_halves(__half* to, const float (&x)[E]) {
  uint32_t pair[E / 2];
  bool finite = true;
#pragma unroll
  for (int i = 0; i < E / 2; ++i) {
    pair[i] = as_word(__floats2half2_rn(x[2 * i], x[2 * i + 1]));
    finite &= (pair[i] & 0x7c00u) != 0x7c00u && (pair[i] & 0x7c000000u) != 0x7c000000u;
  }
  if constexpr (E == 2) *reinterpret_cast<uint32_t*>(to) = pair[0];
  if constexpr (E == 4) *reinterpret_cast<uint2*>(to) = {pair[0], pair[1]};
  if constexpr (E >= 8)
#pragma unroll
    for (int i = 0; i < E / 2; i += 4)
      *reinterpret_cast<uint4*>(to + 2 * i) = {pair[i], pair[i + 1], pair[i + 2], pair[i + 3]};
  return finite;
}

// A row into shared memory, where the codecs read it several times.
__device__ __forceinline__ void stage_row(const __half* x, int d, int lane, uint16_t* to) {
  __syncwarp();
  for (int i = lane; i < d / 8; i += 32) reinterpret_cast<int4*>(to)[i] = reinterpret_cast<const int4*>(x)[i];
  __syncwarp();
}

// Not inlined: a step that fills no page does not load this code.
__device__ __noinline__ void encode_staged(KvForm form, int d, int token, uint8_t* region, int lane,
                                           QuickScratch& scratch) {
  encode_quick(form, Warp{lane}, scratch.row, d, scratch.code, place_row(form, d, token, region));
}
__device__ __forceinline__ void encode_quick_row(KvForm form, const __half* x, int d, int token,
                                                 uint8_t* region, int lane, QuickScratch& scratch) {
  stage_row(x, d, lane, scratch.row);
  encode_staged(form, d, token, region, lane, scratch);
}

// Row `token` of a page just encoded by this warp, as prompt_pages.cu makes tiles of it; true when f16 cannot
// hold a value.
template <int D, KvForm F>
__device__ __forceinline__ bool tile_row(const uint8_t* region, int token, const LevelBytes& levels,
                                         const KvTables& tables, int lane, uint8_t* tile) {
  bool infinite = false;
#pragma unroll
  for (int column = 0; column < D / 8; column += 32) {
    const int4 v = expand_raw<F>(load_raw<D, F>(region, token, column + lane), levels, tables);
    infinite |= any_infinite(v);
    *reinterpret_cast<int4*>(tile + tile_place(token, column + lane)) = v;
  }
  return infinite;
}
template <int D>
__device__ __noinline__ bool tile_row(KvForm form, const uint8_t* region, int token, const KvTables& tables,
                                      int lane, uint8_t* tile) {
  const LevelBytes levels = level_bytes(form, D);
  switch (form) {
#define KVASIR_TILE_ROW(name) \
  case KvForm::name:          \
    return tile_row<D, KvForm::name>(region, token, levels, tables, lane, tile)
    KVASIR_TILE_ROW(kQ8_0);
    KVASIR_TILE_ROW(kQ5_0);
    KVASIR_TILE_ROW(kQ4_0);
    KVASIR_TILE_ROW(kTbq3_0);
    KVASIR_TILE_ROW(kTbq4_0);
    KVASIR_TILE_ROW(kQ4Polar);
    KVASIR_TILE_ROW(kTbq3Tcq);
    KVASIR_TILE_ROW(kTbq2H);
    KVASIR_TILE_ROW(kTbq3H);
    KVASIR_TILE_ROW(kTbq4H);
    KVASIR_TILE_ROW(kTbq2Ht);
    KVASIR_TILE_ROW(kTbq3Ht);
    KVASIR_TILE_ROW(kTbq4Ht);
#undef KVASIR_TILE_ROW
    default:
      return false;
  }
}
// Of row `pos` in its place among `to`, where there are tiles.
template <int D>
__device__ __forceinline__ void make_tile_row(const KvView& kv, const PageTiles& to, int head, int side,
                                              int pos, const uint8_t* region, int lane, int32_t* fault) {
  if constexpr (D == 256 || D == 512) {
    if (!to.tiles) return;
    const int64_t tile = (int64_t(pos / kPage - to.first) * kv.n_kv + head) * 2 + side;
    __syncwarp();  // other lanes have written the codes
    const bool infinite = tile_row<D>(side ? kv.v_form : kv.k_form, region, pos % kPage, kv.tables, lane,
                                      to.tiles + tile * page_tile_bytes(D));
    if (lane == 0 && pos % kPage == 0) to.units[tile] = 1;
    if (infinite) atomicCAS(fault, -1, kWideTiles);
  }
}

// Pages before tiles.older_end, which earlier steps have encoded: blocks beside those of the heads make tiles
// of them, a warp a row.
int older_rows(const HeadArgs& a) {
  const int pages = a.tiles.tiles ? std::max(0, std::min(a.tiles.older_end, a.tiles.end) - a.tiles.first) : 0;
  return pages * a.kv.n_kv * 2 * kPage;
}
template <int D>
__device__ __forceinline__ void make_older_row(const HeadArgs& a, const StepView& step, int i, int lane) {
  if constexpr (D == 256 || D == 512) {
    const KvView& kv = a.kv;
    const PageTiles& to = a.tiles;
    const int token = i % kPage, side = i / kPage % 2, head = i / kPage / 2 % kv.n_kv,
              page = to.first + i / kPage / 2 / kv.n_kv, pos = page * kPage + token;
    if (page >= to.older_end) return;
    const int index = table(step, kv, to.sequence, false)[page];
    // Exact ones are never read here (prompt_pages.cu).
    if (index < 0 || (page < kv.exact_first && table(step, kv, to.sequence, true)[page] >= 0)) return;
    if (pos >= to.oldest)
      return make_tile_row<D>(kv, to, head, side, pos, region(kv, index, head, side), lane, a.fault);
    const int64_t tile = (int64_t(page - to.first) * kv.n_kv + head) * 2 + side;
    for (int column = lane; column < D / 8; column += 32)
      *reinterpret_cast<int4*>(to.tiles + tile * page_tile_bytes(D) + tile_place(token, column)) = {0, 0, 0,
                                                                                                    0};
    if (lane == 0 && token == 0) to.units[tile] = 1;
  }
}

// Would row `to`, just stored, need a scale that f16 cannot say? Searches answer when they encode it.
template <int E>
__device__ __forceinline__ bool scale_fits(KvForm form, const float (&x)[E], const __half* to, int lane,
                                           uint8_t* codes) {
  if (!open_page(form) || trellis(form)) return true;
  float top = 0;
#pragma unroll
  for (int i = 0; i < E; ++i) top = fmaxf(top, fabsf(x[i]));
  if (!(warp_max(top) > kAlwaysFits)) return true;
  __syncwarp();
  return stored_row_fits(form, to, 32 * E, lane, codes);
}

template <int E>
__device__ void store_head(const HeadArgs& a, const StepView& step, int side, int head, int r, float (&x)[E],
                           int lane, float* smem) {
  constexpr int kDim = 32 * E;
  const KvView& kv = a.kv;
  const graph::Row row = step.rows[r];
  const KvForm form = side ? kv.v_form : kv.k_form;
  const int token = row.pos % kPage, page = row.pos / kPage;
  warp_to_basis(basis_of(form), side, x, lane);
  bool finite = true;
  if (form == KvForm::kF32 || form == KvForm::kBf16) {
    uint8_t* to = region(kv, table(step, kv, row.seq, false)[page], head, side);
#pragma unroll
    for (int i = 0; i < E; ++i) {
      const int64_t at = int64_t(token) * kDim + lane * E + i;
      if (form == KvForm::kF32) {
        reinterpret_cast<float*>(to)[at] = x[i];
        finite &= isfinite(x[i]);
      } else {
        const uint32_t bits = __float_as_uint(x[i]);
        const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        reinterpret_cast<uint16_t*>(to)[at] = uint16_t(rounded);
        finite &= (rounded & 0x7f80u) != 0x7f80u && isfinite(x[i]);
      }
    }
  } else {
    __half* to =
        form == KvForm::kF16
            ? reinterpret_cast<__half*>(region(kv, table(step, kv, row.seq, false)[page], head, side))
            : exact_region(kv, table(step, kv, row.seq, true)[page], head, side);
    finite = store_halves<E>(to + int64_t(token) * kDim + lane * E, x);
    if (__all_sync(~0u, finite))
      finite = scale_fits(form, x, to + int64_t(token) * kDim, lane, reinterpret_cast<uint8_t*>(smem));
  }
  if (!finite && atomicCAS(a.fault, -1, a.layer) == -1) a.fault[1] = r;
}

template <int E>
__device__ void run_job(const HeadArgs& a, const HeadJob& job, const StepView& step, int r, int head,
                        int lane, float* smem, float (&x)[E]) {
  constexpr int kDim = 32 * E;
  const int step_row = job.output_rows ? step.out_rows[r] : r;
  const graph::Row row = step.rows[step_row];
  const SequenceInfo seq = step.sequences[row.seq];
  const float* in = job.in + (int64_t(r) * job.n_head + head) * kDim;
  float sum = 0, w[E];
#pragma unroll
  for (int i = 0; i < E; ++i) w[i] = 1;
  if (job.norm && job.w) load_values<E>(job.w + lane * E, w);
  load_values<E>(in + lane * E, x);
#pragma unroll
  for (int i = 0; i < E; ++i) sum += x[i] * x[i];
  if (job.norm) {
    const float inverse = 1.0f / sqrtf(warp_sum(sum) / float(kDim) + job.eps);
#pragma unroll
    for (int i = 0; i < E; ++i) x[i] = x[i] * inverse * w[i] * job.scale;
  }
  const bool query = job.side < 0 && job.out_shifted;
  float base[E];
#pragma unroll
  for (int i = 0; i < E; ++i) base[i] = x[i];
  for (int variant = 0; variant < (query && seq.shift != 0 ? 2 : 1); ++variant) {
    if (job.turns) {
      // Keys are stored at the position they were written for, with the shift already in it.
      const bool shifted = variant == 1 || (!query && seq.shift != 0 && row.pos / kPage >= seq.keep_pages);
      const float* turns = job.turns + (int64_t(shifted) * job.max_rows + step_row) * 2 * job.n_pairs;
      __syncwarp();
      store_values<E>(smem + lane * E, base);
      __syncwarp();
      for (int i = lane; i < job.n_pairs; i += 32) {
        const float c = turns[i], s = turns[job.n_pairs + i], p = smem[i], q = smem[i + job.half];
        smem[i] = p * c - q * s;
        smem[i + job.half] = q * c + p * s;
      }
      __syncwarp();
      load_values<E>(smem + lane * E, x);
    }
    warp_to_basis(job.basis, 0, x, lane);
    float* out = variant == 1 ? job.out_shifted : job.out;
    if (out) store_values<E>(out + (int64_t(r) * job.n_head + head) * kDim + lane * E, x);
  }
  if (job.side >= 0) store_head(a, step, job.side, head, r, x, lane, smem);
}

// The row that a warp has just stored (x), encoded, when its page is full with this step.
template <int E>
__device__ __forceinline__ void encode_stored(const HeadArgs& a, const StepView& step, int side, int head,
                                              int r, const float (&x)[E], int lane, QuickScratch& scratch) {
  const KvForm form = side ? a.kv.v_form : a.kv.k_form;
  const graph::Row row = step.rows[r];
  if (row.pos >= a.full || !open_page(form) || slow_to_encode(form)) return;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < E; ++i) scratch.row[lane * E + i] = nearest_half(x[i]);
  __syncwarp();
  uint8_t* const to = region(a.kv, table(step, a.kv, row.seq, false)[row.pos / kPage], head, side);
  encode_staged(form, 32 * E, row.pos % kPage, to, lane, scratch);
  make_tile_row<32 * E>(a.kv, a.tiles, head, side, row.pos, to, lane, a.fault);
}

// kPages: a block of 16 warps a head, the first works on the head, all encode the page it fills. Otherwise a
// warp a head; kRows: it encodes the row.
enum class Encode { kNone, kRows, kPages };
template <int E, Encode kWhat>
__global__ void __launch_bounds__(kWhat == Encode::kPages ? 512 : 128)
    heads_kernel(const __grid_constant__ HeadArgs a, StepView step, int n_rows) {
  constexpr bool kEncode = kWhat == Encode::kPages;
  __shared__ __align__(16) float smem[kEncode ? 1 : 4][32 * E];
  __shared__ QuickScratch scratch[kEncode ? 16 : kWhat == Encode::kRows ? 4 : 1];
  let_next_start();
  wait_for_inputs();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, r = int(blockIdx.x),
            group = int(gridDim.y - 1 - blockIdx.y);  // keys and values first: they take longest
  if constexpr (kWhat == Encode::kRows)
    if (r >= n_rows)
      return make_older_row<32 * E>(a, step, ((r - n_rows) * int(gridDim.y) + group) * 4 + warp, lane);
  int head = kEncode ? group : group * 4 + warp, j = 0;
  while (j < a.n_jobs && head >= a.jobs[j].n_head) head -= a.jobs[j++].n_head;
  if (j == a.n_jobs) return;
  const HeadJob& job = a.jobs[j];
  if (!kEncode || warp == 0) {
    float x[E];
    run_job<E>(a, job, step, r, head, lane, smem[kEncode ? 0 : warp], x);
    if (kWhat == Encode::kRows && job.side >= 0)
      encode_stored<E>(a, step, job.side, head, r, x, lane, scratch[warp]);
  }
  if constexpr (kEncode) {
    if (job.side < 0) return;
    const graph::Row row = step.rows[r];
    const KvForm form = job.side ? a.kv.v_form : a.kv.k_form;
    if (!open_page(form) || slow_to_encode(form) || row.pos % kPage != kPage - 1) return;
    __syncthreads();
    const int page = row.pos / kPage;
    const __half* from = exact_region(a.kv, table(step, a.kv, row.seq, true)[page], head, job.side);
    uint8_t* to = region(a.kv, table(step, a.kv, row.seq, false)[page], head, job.side);
    for (int token = warp; token < kPage; token += 16)
      encode_quick_row(form, from + token * 32 * E, 32 * E, token, to, lane, scratch[warp]);
  }
}

constexpr int kSearchWarps = 4;

// The index of the step's k-th row that is the last of its page, or -1.
__device__ int filling_row(const StepView& step, int n_rows, int k, int lane) {
  constexpr int kBatch = 4;  // loads in flight
  for (int first = 0; first < n_rows; first += 32 * kBatch) {
    bool fills[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int r = first + 32 * i + lane;
      fills[i] = r < n_rows && step.rows[r].pos % kPage == kPage - 1;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t mask = __ballot_sync(~0u, fills[i]);
      const int n = __popc(mask);
      if (k >= 0 && k < n) return first + 32 * i + int(__fns(mask, 0, k + 1));
      k -= n;
    }
  }
  return -1;
}
// Blocks along x for the pages that rows can fill.
int filled_pages(int n_rows) { return n_rows < n_rows / kPage + 8 ? n_rows : n_rows / kPage + 8; }

// Where the exact rows of a page lie, and its encoded ones.
struct PageToEncode {
  const __half* from;
  uint8_t* to;
};
__device__ __forceinline__ PageToEncode find_page(const KvView& kv, const StepView& step,
                                                  const graph::Row& row, int head, int side) {
  const int page = row.pos / kPage;
  return {exact_region(kv, table(step, kv, row.seq, true)[page], head, side),
          region(kv, table(step, kv, row.seq, false)[page], head, side)};
}

constexpr int kQuickWarps = 16, kQuickParts = kPage / kQuickWarps;

// Pages by blockIdx.x, KV head and side by .y, a quarter of the tokens by .z: a warp a row.
__global__ void __launch_bounds__(32 * kQuickWarps)
    encode_kernel(const __grid_constant__ KvView kv, StepView step, int n_rows) {
  __shared__ QuickScratch scratch[kQuickWarps];
  let_next_start();
  wait_for_inputs();
  const int head = int(blockIdx.y) / 2, side = int(blockIdx.y) % 2;
  const KvForm form = side ? kv.v_form : kv.k_form;
  if (!open_page(form)) return;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, d = kv.head_dim;
  const int token = int(blockIdx.z) * kQuickWarps + warp;
  for (int k = int(blockIdx.x);; k += int(gridDim.x)) {
    const int r = filling_row(step, n_rows, k, lane);
    if (r < 0) return;
    const PageToEncode page = find_page(kv, step, step.rows[r], head, side);
    encode_quick_row(form, page.from + int64_t(token) * d, d, token, page.to, lane, scratch[warp]);
  }
}

struct EncodeArgs {
  KvView kv;
  bool sides[2];
  int layer;
  int32_t* fault;
  PageTiles tiles;
};

// Row `token` of the page that step row r fills, by a warp. A row that the type cannot hold is named.
template <int D>
__device__ __forceinline__ void search_row(const KvView& kv, int layer, const StepView& step, int r, int head,
                                           int side, int token, int lane, int32_t* fault,
                                           TrellisScratch<D>& scratch, const PageTiles& tiles = {}) {
  const KvForm form = side ? kv.v_form : kv.k_form;
  const int d = kv.head_dim;
  const graph::Row row = step.rows[r];
  const PageToEncode page = find_page(kv, step, row, head, side);
  stage_row(page.from + int64_t(token) * d, d, lane, scratch.row);
  const bool fits =
      encode_row(form, Warp{lane}, scratch.row, d, kv.tables, scratch, place_row(form, d, token, page.to));
  make_tile_row<D>(kv, tiles, head, side, row.pos / kPage * kPage + token, page.to, lane, fault);
  if (fits || lane != 0 || atomicCAS(fault, -1, layer) != -1) return;
  // The row itself, when it is one of this step's.
  const int own = r - (kPage - 1 - token);
  const bool mine =
      own >= 0 && step.rows[own].seq == row.seq && step.rows[own].pos == row.pos / kPage * kPage + token;
  fault[1] = mine ? own : r;
}

// Pages by blockIdx.x, KV head and side by .y, tokens by .z: a warp a row.
template <int D>
__global__ void __launch_bounds__(32 * kSearchWarps)
    search_kernel(const __grid_constant__ EncodeArgs a, StepView step, int n_rows) {
  extern __shared__ __align__(16) uint8_t memory[];
  let_next_start();
  wait_for_inputs();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int head = int(blockIdx.y) / 2, side = int(blockIdx.y) % 2,
            token = int(blockIdx.z) * kSearchWarps + warp;
  if (!a.sides[side]) return;
  auto& scratch = reinterpret_cast<TrellisScratch<D>*>(memory)[warp];
  for (int k = int(blockIdx.x);; k += int(gridDim.x)) {
    const int r = filling_row(step, n_rows, k, lane);
    if (r < 0) return;
    search_row(a.kv, a.layer, step, r, head, side, token, lane, a.fault, scratch, a.tiles);
  }
}

template <int D>
void run_search(const Launch& how, const EncodeArgs& args, const StepView& step, int n_rows, int n_pages) {
  const dim3 blocks(unsigned(n_pages), unsigned(2 * args.kv.n_kv), unsigned(kPage / kSearchWarps));
  // Two blocks a multiprocessor when that is all there are: as many as fit gather on those that are free
  // first.
  constexpr size_t kBytes = sizeof(TrellisScratch<D>) * kSearchWarps,
                   kOfTwo = std::max<size_t>(kBytes, 80 << 10);
  const bool few = blocks.x * blocks.y * blocks.z <= unsigned(2 * multiprocessors());
  launch(how, blocks, dim3(32 * kSearchWarps), {few ? kOfTwo : kBytes, kOfTwo}, search_kernel<D>, args, step,
         n_rows);
}

__global__ void __launch_bounds__(512) encode_views_kernel(EncodeViews all, StepView step) {
  __shared__ QuickScratch scratch[16];
  let_next_start();
  wait_for_inputs();
  const graph::Row row = step.rows[blockIdx.x];
  if (row.pos % kPage != kPage - 1) return;
  const KvView& kv = all.views[blockIdx.z].kv;
  const int head = int(blockIdx.y) / 2, side = int(blockIdx.y) % 2;
  const KvForm form = side ? kv.v_form : kv.k_form;
  if (head >= kv.n_kv || !open_page(form)) return;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, d = kv.head_dim;
  const PageToEncode page = find_page(kv, step, row, head, side);
  for (int token = warp; token < kPage; token += 16)
    encode_quick_row(form, page.from + int64_t(token) * d, d, token, page.to, lane, scratch[warp]);
}

// Any cache and page by any block: most steps fill none, and a block ends at once.
constexpr int kSearchSize = 512;
__global__ void __launch_bounds__(32 * kSearchWarps)
    search_views_kernel(EncodeViews all, StepView step, int n_rows, int32_t* fault) {
  extern __shared__ __align__(16) uint8_t memory[];
  let_next_start();
  wait_for_inputs();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  auto& scratch = reinterpret_cast<TrellisScratch<kSearchSize>*>(memory)[warp];
  const int groups = kPage / kSearchWarps, each = 2 * all.max_kv * groups, n = all.n * each;
  for (int r = 0; r < n_rows; ++r) {
    if (step.rows[r].pos % kPage != kPage - 1) continue;
    for (int i = int(blockIdx.x); i < n; i += int(gridDim.x)) {
      const EncodeView& view = all.views[i / each];
      const int head = i % each / (2 * groups), side = i / groups % 2,
                token = i % groups * kSearchWarps + warp;
      if (head < view.kv.n_kv && open_page(side ? view.kv.v_form : view.kv.k_form))
        search_row(view.kv, view.layer, step, r, head, side, token, lane, fault, scratch);
    }
  }
}

template <int E>
void run(const Launch& how, const HeadArgs& args, const StepView& step, int n_rows, bool encode) {
  int heads = 0;
  for (int j = 0; j < args.n_jobs; ++j) heads += args.jobs[j].n_head;
  dim3 blocks(unsigned(n_rows), unsigned(heads + 3) / 4);
  // Rows of f16, bf16 and f32 are stored as they are: nothing to encode, no tiles to make.
  const bool rows =
      args.full > 0 && (args.tiles.tiles || open_page(args.kv.k_form) || open_page(args.kv.v_form));
  if (encode)
    launch(how, dim3(unsigned(n_rows), unsigned(heads)), dim3(512), 0, heads_kernel<E, Encode::kPages>, args,
           step, n_rows);
  else if (rows) {
    blocks.x += (unsigned(older_rows(args)) / 4 + blocks.y - 1) / blocks.y;
    launch(how, blocks, dim3(128), 0, heads_kernel<E, Encode::kRows>, args, step, n_rows);
  } else
    launch(how, blocks, dim3(128), 0, heads_kernel<E, Encode::kNone>, args, step, n_rows);
}

}  // namespace

void run_heads(const Launch& how, const HeadArgs& args, const StepView& step, int n_rows, bool encode) {
  bool stores = false;
  for (int j = 0; j < args.n_jobs; ++j) stores = stores || args.jobs[j].side >= 0;
  encode = encode && stores && (open_page(args.kv.k_form) || open_page(args.kv.v_form));
  with_head_size<64, 128, 256, 512>(
      "heads", args.head_dim, [&](auto size) { run<size.value / 32>(how, args, step, n_rows, encode); });
}

bool needs_encode(const KvView& kv, bool encode) {
  return slow_to_encode(kv.k_form) || slow_to_encode(kv.v_form) ||
         (!encode && (open_page(kv.k_form) || open_page(kv.v_form)));
}

void encode_pages(const Launch& how, const HeadArgs& args, const StepView& step, int n_rows, bool encoded) {
  const KvView& kv = args.kv;
  if (!slow_to_encode(kv.k_form) && !slow_to_encode(kv.v_form))
    return launch(how, dim3(unsigned(filled_pages(n_rows)), unsigned(2 * kv.n_kv), kQuickParts),
                  dim3(32 * kQuickWarps), 0, encode_kernel, kv, step, n_rows);
  EncodeArgs search{kv, {}, args.layer, args.fault, args.tiles};
  const auto left = [&](KvForm form) { return open_page(form) && (!encoded || slow_to_encode(form)); };
  search.sides[0] = left(kv.k_form);
  search.sides[1] = left(kv.v_form);
  // More blocks than pages would not only end at once: they upset how the others are spread.
  const int n_pages = args.full > 0 ? n_rows / kPage : filled_pages(n_rows);
  with_head_size<64, 128, 256, 512>("page encoding", kv.head_dim, [&](auto size) {
    run_search<size.value>(how, search, step, n_rows, n_pages);
  });
}

void encode_pages_of(const Launch& how, const EncodeViews& views, bool search, const StepView& step,
                     int n_rows, int32_t* fault) {
  if (!search)
    return launch(how, dim3(unsigned(n_rows), unsigned(2 * views.max_kv), unsigned(views.n)), dim3(512), 0,
                  encode_views_kernel, views, step);
  constexpr int kBlocks = 132 * 2;
  launch(how, dim3(kBlocks), dim3(32 * kSearchWarps), sizeof(TrellisScratch<kSearchSize>) * kSearchWarps,
         search_views_kernel, views, step, n_rows, fault);
}

}  // namespace kvasir::cuda
