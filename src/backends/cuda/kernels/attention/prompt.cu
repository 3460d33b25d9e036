// Three warp groups: one brings pages of keys and values into shared memory as f16, expanding codes; two
// multiply. A block takes `kRows` columns (query rows times heads of one KV head). At head size 256 each
// group has 64 of them; at 512 both have the same 64 and half of the values each, so that sums fit in
// registers; both then need all scores, and each computes them: a third of the products is done twice, which
// is cheaper than passing them on.
#include <algorithm>

#include "backends/cuda/kernels/attention/chunks.cuh"
#include "backends/cuda/kernels/attention/prompt.h"
#include "backends/cuda/kernels/attention/wgmma.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 384, kGroup = 128, kMaxHeads = 16;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

template <int D>
struct Shape {
  static constexpr int kRows = D == 512 ? 64 : 128, kSlots = D == 512 ? 2 : 4;
  static constexpr int kSlotBytes = kPage * D * 2, kQueryBytes = kRows * D * 2;
  static constexpr int kBytes = 1024 + kQueryBytes + kSlots * kSlotBytes + 2 * kSlots * 8;
};

// Rows [begin, end) of the launch: one sequence, one page of positions.
struct Segment {
  int begin, end;
  graph::Row head;
  SequenceInfo seq;
  int oldest, newest;  // positions seen
  PageRange pages;
};

// What all warp groups walk through in the same order.
struct Work {
  const AttentionArgs& a;
  const StepView& step;
  int first_row, n_rows, heads, first_head, kv_head;

  __device__ __forceinline__ graph::Row row(int r) const {
    return step.rows[a.output_rows ? step.out_rows[r] : r];
  }
  __device__ __forceinline__ Segment segment(int begin) const {
    Segment s;
    s.begin = begin;
    s.head = row(begin);
    s.end = begin + 1;
    int last = s.head.pos;
    while (s.end < first_row + n_rows) {
      const graph::Row next = row(s.end);
      if (next.seq != s.head.seq || next.pos / kPage != s.head.pos / kPage) break;
      last = next.pos;
      ++s.end;
    }
    s.seq = step.sequences[s.head.seq];
    s.oldest = first_visible(a.kv, s.seq, s.head.pos);
    s.newest = last;
    s.pages = split_pages(s.oldest, last, int(blockIdx.x), a.n_splits);
    return s;
  }
};

// Slots in turn.
template <int D>
struct Turn {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++slot == Shape<D>::kSlots) slot = 0, parity ^= 1;
  }
};

__device__ __forceinline__ uint32_t tile_place(int row, int piece) {
  return piece / 8 * (kPage * 128) + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
}
__device__ __forceinline__ void store_piece(uint32_t at, int4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// Codes of eight values.
template <KvForm F>
__device__ __forceinline__ uint2 load_eight(const uint8_t* data, int unit) {
  if constexpr (F == KvForm::kQ8_0) return reinterpret_cast<const uint2*>(data)[unit];
  if constexpr (F == KvForm::kTbq4H) return {reinterpret_cast<const uint32_t*>(data)[unit], 0};
  if constexpr (F == KvForm::kTbq3H) return {load_24(data, unit * 3), 0};
  return {reinterpret_cast<const uint16_t*>(data)[unit], 0};
}
// Rows [low, high) of a region of codes to a tile, zeros elsewhere, by one warp group.
template <int D, KvForm F>
__device__ __forceinline__ void expand_tile(const uint8_t* data, int low, int high, const LevelBytes& levels,
                                            uint32_t tile, int thread) {
  constexpr int kUnits = D / 8, kBatch = 4, kScales = F == KvForm::kQ8_0 ? D / 32 : 1;
  const __half* scales = reinterpret_cast<const __half*>(data + kPage * (D / 8 * code_bits(F)));
#pragma unroll 1
  for (int first = thread; first < kPage * kUnits; first += kBatch * kGroup) {
    uint2 codes[kBatch];
    __half scale[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = first + i * kGroup, row = unit / kUnits;
      codes[i] = load_eight<F>(data, unit);
      scale[i] = scales[row * kScales + (kScales > 1 ? unit % kUnits / 4 : 0)];
      if (row < low || row >= high) codes[i] = {0, 0}, scale[i] = __ushort_as_half(0);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = first + i * kGroup;
      int4 v;
      if constexpr (F == KvForm::kQ8_0)
        v = expand_int8(codes[i], scale[i]);
      else
        v = scale_halves(expand_codes<code_bits(F)>(levels, codes[i].x), scale[i]);
      store_piece(tile + tile_place(unit / kUnits, unit % kUnits), v);
    }
  }
}
template <int D>
__device__ __forceinline__ void copy_tile(const uint8_t* data, int low, int high, uint32_t tile, int thread) {
  constexpr int kUnits = D / 8;
#pragma unroll 4
  for (int unit = thread; unit < kPage * kUnits; unit += kGroup) {
    const int row = unit / kUnits;
    copy_to<16>(tile + tile_place(row, unit % kUnits), data + unit * 16, row >= low && row < high);
  }
}

template <int D>
__device__ __forceinline__ void produce(const Work& work, uint32_t slots, uint32_t full, uint32_t empty) {
  const AttentionArgs& a = work.a;
  const int thread = int(threadIdx.x) % kGroup;
  const LevelBytes k_levels = level_bytes(a.kv.k_form, D), v_levels = level_bytes(a.kv.v_form, D);
  Turn<D> turn;
#pragma unroll 1
  for (int begin = work.first_row; begin < work.first_row + work.n_rows;) {
    const Segment s = work.segment(begin);
#pragma unroll 1
    for (int page = s.pages.begin; page < s.pages.end; ++page) {
      const int low = max(0, s.oldest - page * kPage), high = min(kPage, s.newest + 1 - page * kPage);
#pragma unroll 1
      for (int side = 0; side < 2; ++side, turn.next()) {
        const Region region =
            find_region(a.kv, work.step, s.head.seq, s.newest / kPage, page, work.kv_head, side);
        const uint32_t tile = slots + turn.slot * Shape<D>::kSlotBytes, ready = full + turn.slot * 8;
        wait_barrier(empty + turn.slot * 8, turn.parity ^ 1);
        const LevelBytes levels = side ? v_levels : k_levels;
        if (region.form == KvForm::kF16) {
          copy_tile<D>(region.data, low, high, tile, thread);
          arrive_after_copies(ready);
          continue;
        }
        if (region.form == KvForm::kQ8_0)
          expand_tile<D, KvForm::kQ8_0>(region.data, low, high, levels, tile, thread);
        if (region.form == KvForm::kTbq2H)
          expand_tile<D, KvForm::kTbq2H>(region.data, low, high, levels, tile, thread);
        if (region.form == KvForm::kTbq3H)
          expand_tile<D, KvForm::kTbq3H>(region.data, low, high, levels, tile, thread);
        if (region.form == KvForm::kTbq4H)
          expand_tile<D, KvForm::kTbq4H>(region.data, low, high, levels, tile, thread);
        fence_tiles();
        arrive(ready);
      }
    }
    begin = s.end;
  }
}

// One group's 64 columns and 256 values.
template <int D>
struct Consumer {
  const Work& work;
  uint32_t queries, slots, full, empty;
  int group, thread;
  static constexpr bool kShared = D == 512;  // both groups have the same columns

  __device__ __forceinline__ int column0() const { return kShared ? 0 : group * 64; }
  __device__ __forceinline__ int value0() const { return kShared ? group * 256 : 0; }
  __device__ __forceinline__ void meet() const {
    asm volatile("bar.sync %0, %1;" ::"r"(kShared ? 1 : 1 + group), "r"(kShared ? 256 : 128) : "memory");
  }

  __device__ __forceinline__ void load_queries(const Segment& s, bool shifted) const {
    const float* q = shifted ? work.a.q_shifted : work.a.q;
    constexpr int kUnits = D / 8, kLoaders = kShared ? 256 : 128;
    meet();  // the products that read the old ones have ended
#pragma unroll 2
    for (int i = kShared ? group * 128 + thread : thread; i < 64 * kUnits; i += kLoaders) {
      const int c = column0() + i / kUnits, piece = i % kUnits, r = work.first_row + c / work.heads;
      float4 x{0, 0, 0, 0}, y = x;
      if (r >= s.begin && r < s.end) {
        const float4* from = reinterpret_cast<const float4*>(
            q + (int64_t(r) * work.a.n_head + work.first_head + c % work.heads) * D + piece * 8);
        x = from[0], y = from[1];
      }
      const int4 v{int(as_word(__floats2half2_rn(x.x, x.y))), int(as_word(__floats2half2_rn(x.z, x.w))),
                   int(as_word(__floats2half2_rn(y.x, y.y))), int(as_word(__floats2half2_rn(y.z, y.w)))};
      store_piece(queries + piece / 8 * (Shape<D>::kRows * 128) + c * 128 + ((piece % 8) ^ (c % 8)) * 16, v);
    }
    fence_tiles();
    meet();
  }

  __device__ __forceinline__ void score(uint32_t tile, float (&s)[32]) const {
    const uint64_t a = tile_descriptor(queries + column0() * 128, 0), b = tile_descriptor(tile, 0);
    begin_products();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const int block = k / 4, within = k % 4 * 32;
      product_64(s, a + (block * (Shape<D>::kRows * 128) + within) / 16,
                 b + (block * (kPage * 128) + within) / 16, k == 0);
    }
    end_products();
  }
  __device__ __forceinline__ void mix(uint32_t tile, const uint32_t (&p)[4][4], float (&o)[128]) const {
    const uint64_t b = tile_descriptor(tile + value0() / 64 * (kPage * 128), kPage * 128);
    begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) product_256(o, p[k], b + k * 2048 / 16);
    end_products();
  }

  // Scores to weights, as left operands. [low, high): keys of the page that each of the lane's two columns
  // sees.
  __device__ __forceinline__ void softmax(float (&s)[32], bool whole, const int (&low)[2],
                                          const int (&high)[2], float (&largest)[2], float (&sum)[2],
                                          uint32_t (&p)[4][4], float (&o)[128]) const {
    const AttentionArgs& a = work.a;
    const int t = thread % 4;
    const float scale = a.scale * kLog2E;
    if (a.softcap > 0) {
      const float inner = a.scale / a.softcap * (2 * kLog2E), outer = a.softcap * kLog2E;
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = outer - __fdividef(2 * outer, exp2_fast(s[i] * inner) + 1.0f);
    } else {
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] *= scale;
    }
    if (!whole)
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int key = i / 4 * 8 + t * 2 + i % 2, half = i / 2 % 2;
        if (key < low[half] || key >= high[half]) s[i] = -INFINITY;
      }
    float keep[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < 8; ++n) most = fmaxf(most, fmaxf(s[4 * n + 2 * i], s[4 * n + 2 * i + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float next = fmaxf(largest[i], most), from = next == -INFINITY ? 0.0f : next;
      keep[i] = exp2_fast(largest[i] - from);
      float total = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * n + 2 * i + e];
          x = exp2_fast(x - from);
          total += x;
        }
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      sum[i] = sum[i] * keep[i] + total;
      largest[i] = next;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[k][i] = as_word(__floats2half2_rn(s[4 * (2 * k + i / 2) + 2 * (i % 2)],
                                            s[4 * (2 * k + i / 2) + 2 * (i % 2) + 1]));
    if (__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f))
#pragma unroll
      for (int i = 0; i < 128; ++i) o[i] *= keep[i / 2 % 2];
  }

  __device__ __forceinline__ void run() const {
    float o[128] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    const int lane = thread % 32, warp = thread / 32;
    Turn<D> turn;
    const auto done = [&] {
      __syncwarp();
      if (lane == 0) arrive(empty + turn.slot * 8);
      turn.next();
    };
#pragma unroll 1
    for (int begin = work.first_row; begin < work.first_row + work.n_rows;) {
      const Segment s = work.segment(begin);
      int pos[2], first[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = work.first_row + (column0() + warp * 16 + lane / 4 + 8 * i) / work.heads;
        const bool mine = r >= s.begin && r < s.end;
        pos[i] = mine ? work.row(r).pos : -1;
        first[i] = mine ? first_visible(work.a.kv, s.seq, pos[i]) : 0;
      }
      const bool alone = s.begin == work.first_row && s.end == work.first_row + work.n_rows;
      const int seen_by_all = first_visible(work.a.kv, s.seq, s.newest);
      int base = -1;
#pragma unroll 1
      for (int page = s.pages.begin; page < s.pages.end; ++page) {
        const int shifted = s.seq.shift != 0 && page >= s.seq.keep_pages;
        if (shifted != base) load_queries(s, shifted);
        base = shifted;
        float score_of[32];
        uint32_t p[4][4];
        wait_barrier(full + turn.slot * 8, turn.parity);
        fence_tiles();
        score(slots + turn.slot * Shape<D>::kSlotBytes, score_of);
        done();
        const bool whole = alone && page * kPage >= seen_by_all && page * kPage + kPage - 1 <= s.head.pos;
        const int low[2] = {first[0] - page * kPage, first[1] - page * kPage},
                  high[2] = {pos[0] + 1 - page * kPage, pos[1] + 1 - page * kPage};
        softmax(score_of, whole, low, high, largest, sum, p, o);
        wait_barrier(full + turn.slot * 8, turn.parity);
        fence_tiles();
        mix(slots + turn.slot * Shape<D>::kSlotBytes, p, o);
        done();
      }
      begin = s.end;
    }
    store(o, largest, sum);
  }

  __device__ __forceinline__ void store(const float (&o)[128], const float (&largest)[2],
                                        const float (&sum)[2]) const {
    const AttentionArgs& a = work.a;
    const int lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int c = column0() + warp * 16 + lane / 4 + 8 * i, local = c / work.heads;
      if (local >= work.n_rows) continue;
      const int64_t part =
          (int64_t(work.first_row + local) * a.n_head + work.first_head + c % work.heads) * a.n_splits +
          blockIdx.x;
      if (lane % 4 == 0 && value0() == 0) {
        a.partial_sums[2 * part] = largest[i] * kLn2;
        a.partial_sums[2 * part + 1] = sum[i];
      }
      if (sum[i] == 0) continue;
      float* to = a.partial + part * D + value0() + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < 32; ++n)
        *reinterpret_cast<float2*>(to + n * 8) = {o[4 * n + 2 * i], o[4 * n + 2 * i + 1]};
    }
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    prompt_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ StepView step, int heads,
                  int head_tiles, int rows_each) {
  extern __shared__ __align__(16) uint8_t memory[];
  const uint32_t queries = (shared_address(memory) + 1023) / 1024 * 1024,
                 slots = queries + Shape<D>::kQueryBytes,
                 full = slots + Shape<D>::kSlots * Shape<D>::kSlotBytes, empty = full + Shape<D>::kSlots * 8;
  let_next_start();
  if (threadIdx.x == 0)
    for (int i = 0; i < Shape<D>::kSlots; ++i) {
      init_barrier(full + i * 8, kGroup);
      init_barrier(empty + i * 8, 8);  // a lane of every multiplying warp
    }
  __syncthreads();
  wait_for_inputs();
  const int group = a.n_head / a.kv.n_kv, head_tile = int(blockIdx.y) % head_tiles;
  const int kv_head = int(blockIdx.y) / head_tiles, first_row = int(blockIdx.z) * rows_each;
  const Work work{a,
                  step,
                  first_row,
                  min(rows_each, a.n_rows - first_row),
                  min(heads, group - head_tile * heads),
                  kv_head * group + head_tile * heads,
                  kv_head};
  const int warps = int(threadIdx.x) / kGroup;
  if (warps == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    produce<D>(work, slots, full, empty);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    const Consumer<D> consumer{work, queries, slots, full, empty, warps - 1, int(threadIdx.x) % kGroup};
    consumer.run();
  }
}
#else
template <int D>
__global__ void prompt_kernel(const __grid_constant__ AttentionArgs, const __grid_constant__ StepView, int,
                              int, int) {
  __trap();  // has_prompt() is false there
}
#endif

template <int D>
int rows_of_block(int heads) {
  return std::min(Shape<D>::kRows / heads, kPage);
}

template <int D>
void run(const Launch& how, const AttentionArgs& args, const StepView& step) {
  const int group = args.n_head / args.kv.n_kv, heads = std::min(group, kMaxHeads);
  const int head_tiles = (group + heads - 1) / heads, rows_each = rows_of_block<D>(heads);
  launch(how,
         dim3(unsigned(args.n_splits), unsigned(args.kv.n_kv * head_tiles),
              unsigned((args.n_rows + rows_each - 1) / rows_each)),
         dim3(kThreads), Shape<D>::kBytes, prompt_kernel<D>, args, step, heads, head_tiles, rows_each);
}

}  // namespace

bool has_prompt(const KvView& kv) {
#ifdef KVASIR_SM_90A
  return chunk_form(kv.k_form) && chunk_form(kv.v_form) && (kv.head_dim == 256 || kv.head_dim == 512) &&
         has_warp_group_products();
#else
  return kv.n_kv < 0;
#endif
}

int prompt_kernel_blocks(const KvView& kv, int n_head, int n_rows) {
  const int group = n_head / kv.n_kv, heads = std::min(group, kMaxHeads);
  const int rows_each = kv.head_dim == 512 ? rows_of_block<512>(heads) : rows_of_block<256>(heads);
  return kv.n_kv * ((group + heads - 1) / heads) * ((n_rows + rows_each - 1) / rows_each);
}

void attend_prompt(const Launch& how, const AttentionArgs& args, const StepView& step) {
  if (args.kv.head_dim == 256) return run<256>(how, args, step);
  return run<512>(how, args, step);
}

}  // namespace kvasir::cuda
