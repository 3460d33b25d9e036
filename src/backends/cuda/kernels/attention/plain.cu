// Attention in f32 on the ordinary units: every cache type, every head size; and the merge of the parts.
#include <algorithm>

#include "backends/cuda/kernels/attention/decode.h"
#include "backends/cuda/kernels/attention/flash.h"
#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/attention/prompt.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 128;

// P^T q of each 128 values of a query: 256 sums.
__device__ void make_sketch(const float* q, int d, const float* projection, float* sketch) {
  for (int j = int(threadIdx.x); j < 2 * d; j += kThreads) {
    const float *x = q + j / formats::kSketch * 128, *column = projection + j % formats::kSketch;
    float sum = 0;
    for (int i = 0; i < 128; ++i) sum += x[i] * column[i * formats::kSketch];
    sketch[j] = sum;
  }
}
// This lane's part of q . k of a row of qjl1_256.
__device__ float sketch_score(const float* sketch, const uint8_t* data, int d, int token, int lane) {
  const RegionPlanes planes(KvForm::kQjl1_256, d);
  const uint32_t* signs = reinterpret_cast<const uint32_t*>(data + int64_t(token) * planes.codes);
  const uint16_t* norms = reinterpret_cast<const uint16_t*>(data + planes.scales_at()) + token * (d / 128);
  float score = 0;
  for (int b = 0; b < d / 128; ++b) {
    float sum = 0;
    for (int word = 0; word < 8; ++word) {
      const float s = sketch[b * formats::kSketch + word * 32 + lane];
      sum += signs[8 * b + word] >> lane & 1u ? s : -s;
    }
    score += formats::kSketchScale * __uint_as_float(uint32_t(norms[b]) << 16) * sum;
  }
  return score;
}

__global__ void __launch_bounds__(kThreads)
    plain_kernel(const __grid_constant__ AttentionArgs a, StepView step) {
  __shared__ float q[512], score[kPage], sketch[1024];
  let_next_start();
  wait_for_inputs();
  const int split = int(blockIdx.x), h = int(blockIdx.y), r = int(blockIdx.z), t = int(threadIdx.x);
  const int d = a.kv.head_dim, warp = t / 32, lane = t % 32, kv_head = h / (a.n_head / a.kv.n_kv);
  const graph::Row row = step.rows[a.output_rows ? step.out_rows[r] : r];
  const SequenceInfo seq = step.sequences[row.seq];
  const int first = first_visible(a.kv, seq, row.pos);
  const PageRange range = split_pages(first, row.pos, split, a.n_splits);
  const int64_t part = (int64_t(r) * a.n_head + h) * a.n_splits + split;
  float largest = -INFINITY, sum = 0, acc[4] = {0, 0, 0, 0};
  int base = -1;
  for (int page = range.begin; page < range.end; ++page) {
    const int shifted = seq.shift != 0 && page >= seq.keep_pages;
    __syncthreads();
    if (shifted != base) {
      const float* from = (shifted ? a.q_shifted : a.q) + (int64_t(r) * a.n_head + h) * d;
      for (int i = t; i < d; i += kThreads) q[i] = from[i];
      base = shifted;
      __syncthreads();
      if (a.kv.k_form == KvForm::kQjl1_256) {
        make_sketch(q, d, a.kv.tables.projection, sketch);
        __syncthreads();
      }
    }
    const Region k = find_region(a.kv, step, row.seq, row.pos / kPage, page, kv_head, 0);
    const Region v = find_region(a.kv, step, row.seq, row.pos / kPage, page, kv_head, 1);
    for (int token = warp; token < kPage; token += kThreads / 32) {
      const int pos = page * kPage + token;
      float s = 0;
      if (pos >= first && pos <= row.pos) {
        if (k.form == KvForm::kQjl1_256)
          s = sketch_score(sketch, k.data, d, token, lane);
        else
          for (int i = lane; i < d; i += 32) s += q[i] * region_value(k, d, token, i, a.kv.tables);
      }
      s = warp_sum(s) * a.scale;
      if (a.softcap > 0) s = a.softcap * tanhf(s / a.softcap);
      if (lane == 0) score[token] = pos >= first && pos <= row.pos ? s : -INFINITY;
    }
    __syncthreads();
    const float page_max = warp_max(fmaxf(score[lane], score[lane + 32]));
    const float next = fmaxf(largest, page_max), keep = expf(largest - next);
    sum *= keep;
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] *= keep;
    largest = next;
    for (int token = 0; token < kPage; ++token) {
      if (score[token] == -INFINITY) continue;
      const float p = expf(score[token] - largest);
      sum += p;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (t + i * kThreads < d) acc[i] += p * region_value(v, d, token, t + i * kThreads, a.kv.tables);
    }
  }
  if (t == 0) a.partial_sums[2 * part] = largest, a.partial_sums[2 * part + 1] = sum;
  if (range.begin < range.end)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (t + i * kThreads < d) a.partial[part * d + t + i * kThreads] = acc[i];
}

constexpr int kMergeWarps = 16;

// One head of one row a block. A thread takes four values of parts in turn; threads of the same values add up
// in order.
template <int E>
struct Merge {
  static constexpr int kDim = 32 * E, kEach = kDim / 4, kGroups = 32 * kMergeWarps / kEach;
  float4 sums[kGroups][kEach];
  float totals[kGroups], merged[kDim + 32];
};
// Four values, and what their weights add up to.
struct Share {
  float4 v = {0, 0, 0, 0};
  float total = 0;
  __device__ __forceinline__ void add(float w, const float4& x) {
    v.x += w * x.x, v.y += w * x.y, v.z += w * x.z, v.w += w * x.w;
  }
};

// Parts first, first + step .. The first ones' values are on their way while their weights are found. A part
// without work left none: what is read of it has no weight.
template <int kEach>
__device__ __forceinline__ Share add_parts(const float2* ms, const float4* from, int first, int step,
                                           int n_splits, int lane) {
  constexpr int kAhead = 8;
  float4 early[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (first + i * step < n_splits) early[i] = from[(first + i * step) * kEach];
  float largest = -INFINITY;
  for (int s = lane; s < n_splits; s += 32) largest = fmaxf(largest, ms[s].x);
  largest = warp_max(largest);
  Share sum;
  const auto add = [&](int s, const float4& v) {
    const float2 part = ms[s];
    if (part.y == 0) return;
    const float w = __expf(part.x - largest);
    sum.total += w * part.y;
    sum.add(w, v);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (first + i * step < n_splits) add(first + i * step, early[i]);
#pragma unroll 4
  for (int s = first + kAhead * step; s < n_splits; s += step) add(s, from[s * kEach]);
  return sum;
}

// Value d of a head out of the head-wide basis, a value a thread: by a warp it would be some 400 instructions
// in a row. All threads come; `row`: the values in shared memory.
template <int D>
__device__ __forceinline__ float leave_head_basis(float x, int d, float* row) {
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const float other = __shfl_xor_sync(~0u, x, o);
    x = (d & o) ? other - x : x + other;
  }
  if (d < D) row[d] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int j = 0; j < D / 32; ++j) {
    const float v = row[32 * j + d % 32];
    sum += __popc(j & (d / 32)) & 1 ? -v : v;
  }
  constexpr float kNorm = D == 64    ? 0.125f
                          : D == 128 ? 0.08838834764831845f
                          : D == 256 ? 0.0625f
                                     : 0.04419417382415922f;
  return flip_sign(1, d, sum * kNorm);
}

// The same of the bases of blocks, by a warp.
template <int E>
__device__ __noinline__ void finish_blocks(const AttentionArgs& a, const float* merged, KvBasis basis,
                                           int64_t head, int lane) {
  float x[E];
#pragma unroll
  for (int i = 0; i < E; ++i) x[i] = merged[lane * (E + 1) + i];
  warp_from_basis(basis, 1, x, lane);
#pragma unroll
  for (int i = 0; i < E; ++i) a.out[head * 32 * E + lane * E + i] = x[i];
  if (a.quant.q) quantize_lanes(x, lane, a.quant.q + head * 32 * E, a.quant.meta + head * E);
}

template <int E>
__global__ void __launch_bounds__(32 * kMergeWarps) merge_kernel(const __grid_constant__ AttentionArgs a) {
  constexpr int kDim = 32 * E, kEach = Merge<E>::kEach, kGroups = Merge<E>::kGroups;
  __shared__ Merge<E> shared;
  let_next_start();
  wait_for_inputs();
  const int thread = int(threadIdx.x), lane = thread % 32, group = thread / kEach, at = thread % kEach;
  const int64_t head = int64_t(blockIdx.y) * a.n_head + int(blockIdx.x);
  Share sum = add_parts<kEach>(reinterpret_cast<const float2*>(a.partial_sums) + head * a.n_splits,
                               reinterpret_cast<const float4*>(a.partial + head * a.n_splits * kDim) + at,
                               group, kGroups, a.n_splits, lane);
  shared.sums[group][at] = sum.v;
  if (at == 0) shared.totals[group] = sum.total;
  __syncthreads();
  if (thread < kEach)
#pragma unroll
    for (int g = 1; g < kGroups; ++g) sum.add(1, shared.sums[g][at]), sum.total += shared.totals[g];
  if (thread < kEach) {
    const float inverse = sum.total > 0 ? 1.0f / sum.total : 0.0f;
    const float x[4] = {sum.v.x * inverse, sum.v.y * inverse, sum.v.z * inverse, sum.v.w * inverse};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = 4 * at + i;
      shared.merged[d + d / E] = x[i];  // apart, so that lanes below meet no bank twice
    }
  }
  __syncthreads();
  const KvBasis basis = basis_of(a.kv.v_form);
  if (basis != KvBasis::kHeadWide && basis != KvBasis::kModel) {
    if (thread < 32) finish_blocks<E>(a, shared.merged, basis, head, lane);
    return;
  }
  float x = thread < kDim ? shared.merged[thread + thread / E] : 0;
  if (basis == KvBasis::kHeadWide) x = leave_head_basis<kDim>(x, thread, &shared.sums[0][0].x);
  if (thread >= kDim) return;
  a.out[head * kDim + thread] = x;
  const int64_t group_at = head * kDim + thread - lane;
  if (a.quant.q) quantize_group(x, lane, a.quant.q + group_at, a.quant.meta + group_at / 32);
}

}  // namespace

bool has_flash(const KvView& kv) {
  const auto wide = [](KvForm form) { return form == KvForm::kF32 || form == KvForm::kBf16; };
  return !wide(kv.k_form) && !wide(kv.v_form);
}

AttentionKernel choose_attention(const KvView& kv, int n_rows, bool flash, bool portable) {
  if (!flash) return AttentionKernel::kPlain;
  if (!portable && n_rows <= kMaxDecodeRows && has_decode(kv)) return AttentionKernel::kDecode;
  if (!portable && n_rows > kMaxDecodeRows && has_prompt(kv)) return AttentionKernel::kPrompt;
  return has_flash(kv) ? AttentionKernel::kTiles : AttentionKernel::kPlain;
}

int attention_splits(const KvView& kv, int n_head, int n_rows, int max_pages, AttentionKernel kernel) {
  const int processors = multiprocessors();
  const int group = n_head / kv.n_kv;
  if (kernel == AttentionKernel::kDecode) {
    const int tiles = max_pages * std::max(1, 512 / kv.head_dim);
    return std::clamp(processors / (kv.n_kv * decode_head_tiles(group) * n_rows), 1, std::max(1, tiles));
  }
  const bool plain = kernel == AttentionKernel::kPlain;
  if (n_rows > kMaxDecodeRows) {
    // Blocks of a prompt that fill less than half of the processors take a share of the keys each.
    const int blocks = plain                                ? n_rows * n_head
                       : kernel == AttentionKernel::kPrompt ? prompt_kernel_blocks(kv, n_head, n_rows)
                                                            : prompt_blocks(kv, n_head, n_rows);
    return std::clamp(processors / blocks, 1, std::max(1, max_pages));
  }
  const int heads = plain ? n_head : kv.n_kv * flash_head_tiles(group);
  return std::clamp(2 * processors / (heads * n_rows), 1, std::max(1, max_pages));
}

static void merge_attention(const Launch& how, const AttentionArgs& args) {
  with_head_size<64, 128, 256, 512>("attention merge", args.kv.head_dim, [&](auto size) {
    launch(how, dim3(unsigned(args.n_head), unsigned(args.n_rows)), dim3(32 * kMergeWarps), 0,
           merge_kernel<size.value / 32>, args);
  });
}

void attend(const Launch& how, const AttentionArgs& args, const StepView& step, AttentionKernel kernel,
            const std::function<Launch()>& more) {
  if (kernel == AttentionKernel::kDecode) {
    attend_decode(how, args, step);
    merge_decode(more(), args);
    return;
  }
  if (kernel == AttentionKernel::kPrompt) {
    attend_prompt(how, args, step, more);
    return merge_rows(more(), args);
  }
  if (kernel == AttentionKernel::kTiles)
    attend_flash(how, args, step);
  else
    launch(how, dim3(unsigned(args.n_splits), unsigned(args.n_head), unsigned(args.n_rows)), dim3(kThreads),
           0, plain_kernel, args, step);
  merge_attention(more(), args);
}

}  // namespace kvasir::cuda
