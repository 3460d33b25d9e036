// Attention in f32 on the ordinary units: every cache type, every head size; and the merge of the parts.
#include <algorithm>

#include "backends/cuda/kernels/attention/decode.h"
#include "backends/cuda/kernels/attention/flash.h"
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

// Not inlined: most caches have no use for it.
template <int E>
__device__ __noinline__ void leave_block_basis(KvBasis basis, float (&x)[E], int lane) {
  warp_from_basis(basis, 1, x, lane);
}

constexpr int kMergeWarps = 16;

// This lane's E values of a part. kDecode: in decode_position()'s order.
template <int E, bool kDecode>
__device__ __forceinline__ void add_part(const float* part, int lane, float w, float (&acc)[E]) {
  if constexpr (kDecode || E == 2) {
#pragma unroll
    for (int i = 0; i < E; i += 2) {
      const int d = lane * E + i;
      const float2 v = *reinterpret_cast<const float2*>(part + (kDecode ? decode_position(d) : d));
      acc[i] += w * v.x, acc[i + 1] += w * v.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < E; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(part + lane * E + i);
      acc[i] += w * v.x, acc[i + 1] += w * v.y, acc[i + 2] += w * v.z, acc[i + 3] += w * v.w;
    }
  }
}

// One head of one row a block: warps take parts in turn, then add up in order.
template <int E, bool kDecode>
__global__ void __launch_bounds__(32 * kMergeWarps) merge_kernel(const __grid_constant__ AttentionArgs a) {
  const QuantRows& quant = a.quant;
  constexpr int kDim = 32 * E, kWarps = kMergeWarps;
  __shared__ float sums[kWarps][kDim];
  __shared__ float weight_sum[kWarps];
  let_next_start();
  wait_for_inputs();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int64_t head = int64_t(blockIdx.y) * a.n_head + blockIdx.x;
  const float* ms = a.partial_sums + head * a.n_splits * 2;
  float largest = -INFINITY;
  for (int s = lane; s < a.n_splits; s += 32) largest = fmaxf(largest, ms[2 * s]);
  largest = warp_max(largest);
  float acc[E] = {}, total = 0;
#pragma unroll 4
  for (int s = warp; s < a.n_splits; s += kWarps) {
    const float sum = ms[2 * s + 1];
    if (sum == 0) continue;  // a part without work left nothing
    const float w = __expf(ms[2 * s] - largest);
    total += w * sum;
    add_part<E, kDecode>(a.partial + (head * a.n_splits + s) * kDim, lane, w, acc);
  }
#pragma unroll
  for (int i = 0; i < E; ++i) sums[warp][lane * E + i] = acc[i];
  if (lane == 0) weight_sum[warp] = total;
  __syncthreads();
  if (warp == 0) {
    total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += weight_sum[w];
    const float inverse = total > 0 ? 1.0f / total : 0.0f;
#pragma unroll
    for (int i = 0; i < E; ++i) {
      float v = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) v += sums[w][lane * E + i];
      acc[i] = v * inverse;
    }
    const KvBasis basis = basis_of(a.kv.v_form);
    if (basis == KvBasis::kHeadWide)
      warp_unrotate(1, acc, lane);
    else if (basis != KvBasis::kModel)
      leave_block_basis(basis, acc, lane);
#pragma unroll
    for (int i = 0; i < E; ++i) a.out[head * kDim + lane * E + i] = acc[i];
    if (quant.q) quantize_lanes(acc, lane, quant.q + head * kDim, quant.meta + head * E);
  }
}

}  // namespace

bool has_flash(const KvView& kv) {
  const auto wide = [](KvForm form) { return form == KvForm::kF32 || form == KvForm::kBf16; };
  return !wide(kv.k_form) && !wide(kv.v_form);
}

AttentionKernel choose_attention(const KvView& kv, int n_rows, bool flash, bool portable) {
  if (!flash || !has_flash(kv)) return AttentionKernel::kPlain;
  if (portable) return AttentionKernel::kTiles;
  if (n_rows <= kMaxDecodeRows) return has_decode(kv) ? AttentionKernel::kDecode : AttentionKernel::kTiles;
  return has_prompt(kv) ? AttentionKernel::kPrompt : AttentionKernel::kTiles;
}

int attention_splits(const KvView& kv, int n_head, int n_rows, int max_pages, AttentionKernel kernel) {
  constexpr int kProcessors = 132;
  const int group = n_head / kv.n_kv;
  if (kernel == AttentionKernel::kDecode) {
    const int tiles = max_pages * std::max(1, 512 / kv.head_dim);
    return std::clamp(kProcessors / (kv.n_kv * decode_head_tiles(group) * n_rows), 1, std::max(1, tiles));
  }
  const bool plain = kernel == AttentionKernel::kPlain;
  if (n_rows > kMaxDecodeRows) {
    // Blocks of a prompt that fill less than half of the processors take a share of the keys each.
    const int blocks = plain                                ? n_rows * n_head
                       : kernel == AttentionKernel::kPrompt ? prompt_kernel_blocks(kv, n_head, n_rows)
                                                            : prompt_blocks(kv, n_head, n_rows);
    return std::clamp(kProcessors / blocks, 1, std::max(1, max_pages));
  }
  const int heads = plain ? n_head : kv.n_kv * flash_head_tiles(group);
  return std::clamp(2 * kProcessors / (heads * n_rows), 1, std::max(1, max_pages));
}

template <bool kDecode>
static void merge_attention(const Launch& how, const AttentionArgs& args) {
  const dim3 grid(unsigned(args.n_head), unsigned(args.n_rows)), block(32 * kMergeWarps);
  switch (args.kv.head_dim) {
    case 64:
      return launch(how, grid, block, 0, merge_kernel<2, kDecode>, args);
    case 128:
      return launch(how, grid, block, 0, merge_kernel<4, kDecode>, args);
    case 256:
      return launch(how, grid, block, 0, merge_kernel<8, kDecode>, args);
    case 512:
      return launch(how, grid, block, 0, merge_kernel<16, kDecode>, args);
    default:
      return;
  }
}

void attend(const Launch& how, const AttentionArgs& args, const StepView& step, AttentionKernel kernel,
            const std::function<Launch()>& second) {
  if (kernel == AttentionKernel::kDecode) {
    attend_decode(how, args, step);
    merge_attention<true>(second(), args);
    return;
  }
  if (kernel == AttentionKernel::kPrompt)
    attend_prompt(how, args, step);
  else if (kernel == AttentionKernel::kTiles)
    attend_flash(how, args, step);
  else
    launch(how, dim3(unsigned(args.n_splits), unsigned(args.n_head), unsigned(args.n_rows)), dim3(kThreads),
           0, plain_kernel, args, step);
  merge_attention<false>(second(), args);
}

}  // namespace kvasir::cuda
