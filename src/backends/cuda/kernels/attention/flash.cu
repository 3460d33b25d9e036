#include <algorithm>

#include "backends/cuda/kernels/attention/flash.h"
#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/tiles.cuh"

namespace kvasir::cuda {
namespace {

constexpr float kUnit = 4;  // of tiles that f16 cannot hold: levels times scales are below 4 x 65504

// Shared memory of one block.
template <int D, int M>
struct Shared {
  __half q[M][D + 8], k[kPage][D + 8], v[kPage][D + 8];
  float score[M][kPage + 4];
};

// The columns of one tile: `rows` query rows times the query heads of one KV head.
struct Tile {
  int first_row, n_rows;  // of the launch
  int heads;              // query heads in the tile
  int first_head;
};

__device__ __forceinline__ const graph::Row& row_of(const AttentionArgs& a, const StepView& step, int r) {
  return step.rows[a.output_rows ? step.out_rows[r] : r];
}

// M = 16 WM columns; WM x WD warps: a warp's products are 16 columns by a WD-th of the keys, then of the
// head.
template <int D, int WM, int WD>
struct Block {
  static constexpr int M = 16 * WM, kThreads = 32 * WM * WD, kTiles = D / WD / 8;
  const AttentionArgs& a;
  const StepView& step;
  Shared<D, M>& shared;
  Tile tile;
  int kv_head, warp_m, warp_d, lane;
  LevelBytes k_levels, v_levels;
  float acc[kTiles][4], largest[2], sum[2];

  // Few rows: one row a tile.
  __device__ int row_of_column(int c) const { return WM == 1 ? (c < tile.heads ? 0 : 1) : c / tile.heads; }

  __device__ void load_queries(int begin, int end, bool shifted) {
    const float* q = shifted ? a.q_shifted : a.q;
    constexpr int kEach = M * (D / 4) / kThreads, kBatch = kEach < 8 ? kEach : 8;
    for (int first = 0; first < kEach; first += kBatch) {  // a batch of loads in flight at a time
      float4 v[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = (first + j) * kThreads + int(threadIdx.x), c = i / (D / 4), x = i % (D / 4) * 4;
        const int local = row_of_column(c), r = tile.first_row + local;
        v[j] = {0, 0, 0, 0};
        if (r >= begin && r < end)
          v[j] = *reinterpret_cast<const float4*>(
              q + (int64_t(r) * a.n_head + tile.first_head + c - local * tile.heads) * D + x);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = (first + j) * kThreads + int(threadIdx.x), c = i / (D / 4), x = i % (D / 4) * 4;
        const __half2 h[2] = {__floats2half2_rn(v[j].x, v[j].y), __floats2half2_rn(v[j].z, v[j].w)};
        *reinterpret_cast<uint2*>(&shared.q[c][x]) = *reinterpret_cast<const uint2*>(h);
      }
    }
  }

  __device__ void multiply_keys() {
    constexpr int kKeys = kPage / WD, kPairs = kKeys / 16;
    float s[kPairs * 2][4] = {};
    const int key0 = warp_d * kKeys;
#pragma unroll 4
    for (int k = 0; k < D / 16; ++k) {
      uint32_t q[4];
      load_tiles(q, &shared.q[warp_m * 16 + lane % 16][k * 16 + lane / 16 * 8]);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        uint32_t b[4];
        load_tiles(b, &shared.k[key0 + p * 16 + lane % 8 + lane / 16 * 8][k * 16 + lane / 8 % 2 * 8]);
        multiply(s[2 * p], q, b[0], b[1]);
        multiply(s[2 * p + 1], q, b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kPairs * 2; ++n) {
      const int key = key0 + n * 8 + lane % 4 * 2, c = warp_m * 16 + lane / 4;
      *reinterpret_cast<float2*>(&shared.score[c][key]) = {s[n][0], s[n][1]};
      *reinterpret_cast<float2*>(&shared.score[c + 8][key]) = {s[n][2], s[n][3]};
    }
  }

  // scale and soft cap, where there is one, in place; apart from softmax(), whose code every step fetches
  // anew.
  __device__ void cap_scores() {
#pragma unroll 1
    for (int i = int(threadIdx.x); i < M * kPage; i += kThreads) {
      float& s = shared.score[i / kPage][i % kPage];
      s = a.softcap * tanhf(s * a.scale / a.softcap) / a.scale;
    }
  }

  // Probabilities of this warp's 16 columns as left operands, four tiles of 16 keys. [low, high): keys of the
  // page that column half i sees.
  __device__ void softmax(const int (&low)[2], const int (&high)[2], uint32_t (&p)[4][4]) {
    float s[2][16];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* row = shared.score[warp_m * 16 + lane / 4 + 8 * i];
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int key = j * 8 + lane % 4 * 2;
        const float2 v = *reinterpret_cast<const float2*>(row + key);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float x = (e ? v.y : v.x) * a.scale;
          x = key + e >= low[i] && key + e < high[i] ? x : -INFINITY;
          s[i][2 * j + e] = x;
          most = fmaxf(most, x);
        }
      }
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float next = fmaxf(largest[i], most);
      const float keep = next == -INFINITY ? 1.0f : __expf(largest[i] - next);
      float total = 0;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        s[i][j] = s[i][j] == -INFINITY ? 0.0f : __expf(s[i][j] - next);
        total += s[i][j];
      }
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      sum[i] = sum[i] * keep + total;
      largest[i] = next;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        acc[n][2 * i] *= keep;
        acc[n][2 * i + 1] *= keep;
      }
    }
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int i = part % 2, j = 4 * t + part / 2 * 2;
        const __half2 h = __floats2half2_rn(s[i][j], s[i][j + 1]);
        p[t][part] = *reinterpret_cast<const uint32_t*>(&h);
      }
  }

  __device__ void multiply_values(const uint32_t (&p)[4][4]) {
    const int column0 = warp_d * (D / WD);
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        uint32_t b[4];
        load_tiles_transposed(b, &shared.v[t * 16 + lane % 16][column0 + n * 8 + lane / 16 * 8]);
        multiply(acc[n], p[t], b[0], b[1]);
        multiply(acc[n + 1], p[t], b[2], b[3]);
      }
  }

  // Scores of keys in units of kUnit.
  __device__ void apply_unit() {
#pragma unroll 1
    for (int i = int(threadIdx.x); i < M * kPage; i += kThreads) shared.score[i / kPage][i % kPage] *= kUnit;
  }

  // Rows [begin, end) of the launch: one sequence, one page of positions.
  __device__ void segment(int begin, int end) {
    const graph::Row first_row = row_of(a, step, begin), last_row = row_of(a, step, end - 1);
    const SequenceInfo seq = step.sequences[first_row.seq];
    const int oldest = first_visible(a.kv, seq, first_row.pos), newest = last_row.pos,
              query_page = newest / kPage;
    const PageRange range = split_pages(oldest, newest, int(blockIdx.x), a.n_splits);
    int pos[2], first[2];  // of this lane's two columns; nothing is visible to the others
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = tile.first_row + row_of_column(warp_m * 16 + lane / 4 + 8 * i);
      const bool mine = r >= begin && r < end;
      pos[i] = mine ? row_of(a, step, r).pos : -1;
      first[i] = mine ? first_visible(a.kv, seq, pos[i]) : 0;
    }
    const auto load = [&](int page, int side, float unit) {
      const int low = max(0, oldest - page * kPage), high = min(kPage, newest + 1 - page * kPage);
      const bool infinite = load_tile<D, kThreads>(
          find_region(a.kv, step, first_row.seq, query_page, page, kv_head, side), low, high,
          side ? v_levels : k_levels, a.kv.tables, unit, side ? &shared.v[0][0] : &shared.k[0][0]);
      commit_copies();
      return infinite;
    };
    // Waits for a side's tile, and makes it once more in units when f16 cannot hold it; true: it is in units.
    const auto settle = [&](int page, int side, bool infinite) {
      wait_copies<1>();
      if (!__syncthreads_or(infinite)) return false;
      load(page, side, kUnit);
      __syncthreads();
      return true;
    };
    int base = -1;
    bool infinite_keys = false;
    __syncthreads();
    if (range.begin < range.end) infinite_keys = load(range.begin, 0, 1);
    for (int page = range.begin; page < range.end; ++page) {
      const int shifted = seq.shift != 0 && page >= seq.keep_pages;
      if (shifted != base) load_queries(begin, end, shifted);
      base = shifted;
      const bool infinite_values = load(page, 1, 1), key_units = settle(page, 0, infinite_keys);
      multiply_keys();
      __syncthreads();
      if (key_units) {
        apply_unit();
        __syncthreads();
      }
      if (a.softcap > 0) {
        cap_scores();
        __syncthreads();
      }
      if (page + 1 < range.end)
        infinite_keys = load(page + 1, 0, 1);
      else
        commit_copies();
      uint32_t p[4][4];
      int low[2], high[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) low[i] = first[i] - page * kPage, high[i] = pos[i] + 1 - page * kPage;
      softmax(low, high, p);
      if (settle(page, 1, infinite_values))
#pragma unroll
        for (int i = 0; i < 16; ++i)
          p[i / 4][i % 4] = as_word(__hmul2(as_half2(p[i / 4][i % 4]), __float2half2_rn(kUnit)));
      multiply_values(p);
      __syncthreads();
    }
  }

  __device__ void store() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int c = warp_m * 16 + lane / 4 + 8 * i, local = row_of_column(c), r = tile.first_row + local;
      if (local >= tile.n_rows) continue;
      const int64_t part =
          (int64_t(r) * a.n_head + tile.first_head + c - local * tile.heads) * a.n_splits + blockIdx.x;
      if (lane % 4 == 0 && warp_d == 0) {
        a.partial_sums[2 * part] = largest[i];
        a.partial_sums[2 * part + 1] = sum[i];
      }
      if (sum[i] == 0) continue;
      float* to = a.partial + part * D + warp_d * (D / WD) + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        *reinterpret_cast<float2*>(to + n * 8) = {acc[n][2 * i], acc[n][2 * i + 1]};
    }
  }
};

// `early`: rows that the first block has less than others, so that those begin where pages of positions do: a
// block whose rows lie in two pages goes through all that they see twice.
template <int D, int WM, int WD>
__global__ void __launch_bounds__(32 * WM * WD)
    flash_kernel(const __grid_constant__ AttentionArgs a, StepView step, int heads, int head_tiles,
                 int rows_each, int early, bool pairs) {
  extern __shared__ __align__(16) uint8_t memory[];
  let_next_start();
  uint8_t* const k_pairs = memory + sizeof(Shared<D, 16 * WM>);
  uint8_t* const v_pairs = a.kv.v_form == a.kv.k_form ? k_pairs : k_pairs + pair_bytes(a.kv.k_form);
  if (pairs) {
    copy_pairs(a.kv.k_form, k_pairs);
    if (a.kv.v_form != a.kv.k_form) copy_pairs(a.kv.v_form, v_pairs);
  }
  wait_for_inputs();
  const int group = a.n_head / a.kv.n_kv, head_tile = int(blockIdx.y) % head_tiles,
            warp = int(threadIdx.x) / 32;
  Block<D, WM, WD> block{a, step, *reinterpret_cast<Shared<D, 16 * WM>*>(memory)};
  block.kv_head = int(blockIdx.y) / head_tiles;
  block.tile.heads = min(heads, group - head_tile * heads);
  block.tile.first_head = block.kv_head * group + head_tile * heads;
  const int end_row = int(blockIdx.z + 1) * rows_each - early;
  block.tile.first_row = max(end_row - rows_each, 0);
  block.tile.n_rows = min(end_row, a.n_rows) - block.tile.first_row;
  block.warp_m = warp / WD;
  block.warp_d = warp % WD;
  block.lane = int(threadIdx.x) % 32;
  block.k_levels = level_bytes(a.kv.k_form, D);
  block.v_levels = level_bytes(a.kv.v_form, D);
  if (pairs) {
    block.k_levels.pairs = reinterpret_cast<const uint32_t*>(k_pairs);
    block.v_levels.pairs = reinterpret_cast<const uint32_t*>(v_pairs);
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < block.kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) block.acc[n][i] = 0;
  block.largest[0] = block.largest[1] = -INFINITY;
  block.sum[0] = block.sum[1] = 0;
  const int end = block.tile.first_row + block.tile.n_rows;
  for (int begin = block.tile.first_row; begin < end;) {
    const graph::Row head = row_of(a, step, begin);
    int next = begin + 1;
    while (next < end && row_of(a, step, next).seq == head.seq &&
           row_of(a, step, next).pos / kPage == head.pos / kPage)
      ++next;
    block.segment(begin, next);
    begin = next;
  }
  block.store();
}

template <int D, int WM, int WD>
void run(const Launch& how, const AttentionArgs& args, const StepView& step, bool one_row) {
  constexpr int M = 16 * WM;
  const int group = args.n_head / args.kv.n_kv, heads = std::min(group, kDecodeColumns);
  const int head_tiles = (group + heads - 1) / heads, rows_each = one_row ? 1 : M / heads;
  constexpr size_t kBytes = sizeof(Shared<D, M>), kMost = 227 * 1024;
  const int early = kPage % rows_each == 0 ? first_position(args) % rows_each : 0;
  const KvView& kv = args.kv;
  const size_t pairs = size_t(pair_bytes(kv.k_form) + (kv.v_form == kv.k_form ? 0 : pair_bytes(kv.v_form)));
  const bool fits = pairs > 0 && kBytes + pairs <= kMost;
  launch(how,
         dim3(unsigned(args.n_splits), unsigned(args.kv.n_kv * head_tiles),
              unsigned((early + args.n_rows + rows_each - 1) / rows_each)),
         dim3(32 * WM * WD), kBytes + (fits ? pairs : 0), flash_kernel<D, WM, WD>, args, step, heads,
         head_tiles, rows_each, early, fits);
}

template <int D>
void run(const Launch& how, const AttentionArgs& args, const StepView& step) {
  if (args.n_rows <= 16)
    run<D, 1, 4>(how, args, step, true);
  else
    run<D, 4, 2>(how, args, step, false);
}

}  // namespace

void attend_flash(const Launch& how, const AttentionArgs& args, const StepView& step) {
  with_head_size<64, 128, 256, 512>("attention tiles", args.kv.head_dim,
                                    [&](auto size) { run<size.value>(how, args, step); });
}

}  // namespace kvasir::cuda
