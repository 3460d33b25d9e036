// Merges the parts that decode.cu leaves. A block takes 128 values of a head or, of few parts, the head; 32
// lanes of 4 values take parts in turn. Bound: n_splits * head_dim * 4 bytes a head from L2, asked for at
// once. Sums are in the order of those warps. Values in the head-wide basis leave it by all blocks of the
// head, a cluster; blocks of 32 or 128 values do so by themselves.
#include "backends/cuda/kernels/attention/decode.h"
#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/cluster.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kWarps = 16;
// Parts of a warp that are asked for before any is added.
constexpr int kAhead = 9;

// Of a block of kDims values: warps of the same 128 are a column, kGroups high.
template <int kDims>
struct Merge {
  static constexpr int kColumns = kDims / 128, kGroups = kWarps / kColumns;
  float4 sums[kGroups][kDims / 4];
  float totals[kGroups], row[kDims], merged[kDims / 4 * 5];  // merged: 4 values a lane, apart
};

// A warp's share: parts `group`, group + kGroups .. A part without work left no values: what is read of it
// has no weight.
template <int kDims>
__device__ __forceinline__ void add_parts(const float2* ms, const float4* from, int stride, int n_splits,
                                          int group, int lane, float4& to, float& to_total) {
  constexpr int kGroups = Merge<kDims>::kGroups;
  float4 early[kAhead], v = {0, 0, 0, 0};
  float2 own[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int s = group + i * kGroups;
    own[i] = {-INFINITY, 0};
    if (s < n_splits) early[i] = from[int64_t(s) * stride], own[i] = ms[s];
  }
  float largest = -INFINITY, total = 0;
#pragma unroll 4
  for (int s = lane; s < n_splits; s += 32) largest = fmaxf(largest, ms[s].x);
  largest = warp_max(largest);
  const auto add = [&](const float2& part, const float4& x) {
    if (part.y == 0) return;
    const float w = __expf(part.x - largest);
    total += w * part.y;
    v.x += w * x.x, v.y += w * x.y, v.z += w * x.z, v.w += w * x.w;
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) add(own[i], early[i]);
#pragma unroll 1
  for (int s = group + kAhead * kGroups; s < n_splits; s += kGroups) add(ms[s], from[int64_t(s) * stride]);
  to = v;
  if (lane == 0) to_total = total;
}

// Value d of the block's out of a basis of blocks, by a warp each 128.
template <int kDims>
__device__ __forceinline__ float leave_block_basis(KvBasis basis, int d, Merge<kDims>& shared) {
  if (d < kDims / 4) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = shared.merged[d * 5 + i];
    warp_from_basis(basis, 1, x, d % 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) shared.row[d * 4 + i] = x[i];
  }
  __syncthreads();
  return d < kDims ? shared.row[d] : 0;
}

// Value d of the block's out of the head-wide basis: blocks of the cluster hold the head. All threads come.
template <int D, int kDims>
__device__ __forceinline__ float leave_head_basis(float x, int d, int rank, Merge<kDims>& shared) {
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const float other = __shfl_xor_sync(~0u, x, o);
    x = (d & o) ? other - x : x + other;
  }
  if (d < kDims) shared.row[d] = x;
  __syncthreads();
  if constexpr (D > kDims) cluster_sync();
  const int at = rank * kDims + d;
  float sum = 0;
  if (d < kDims) {
    float v[D / 32];
#pragma unroll
    for (int j = 0; j < D / 32; ++j) {
      const float* from = &shared.row[j % (kDims / 32) * 32 + d % 32];
      v[j] = D > kDims ? load_remote(from, j / (kDims / 32)) : *from;
    }
#pragma unroll
    for (int j = 0; j < D / 32; ++j) sum += __popc(j & (at / 32)) & 1 ? -v[j] : v[j];
  }
  if constexpr (D > kDims) {
    __syncthreads();
    cluster_sync();  // no block leaves while its values are read
  }
  constexpr float kNorm = D == 128 ? 0.08838834764831845f : D == 256 ? 0.0625f : 0.04419417382415922f;
  return d < kDims ? flip_sign(1, at, sum * kNorm) : 0;
}

template <int D, int kDims, bool kHeadWide>
__device__ __forceinline__ void merge_dims(const AttentionArgs& a) {
  using Room = Merge<kDims>;
  __shared__ Room shared;
  let_next_start();
  wait_for_inputs();
  const int thread = int(threadIdx.x), lane = thread % 32, rank = int(blockIdx.x) % (D / kDims),
            column = thread / 32 % Room::kColumns, group = thread / 32 / Room::kColumns;
  const int64_t head = int64_t(blockIdx.y) * a.n_head + int(blockIdx.x) / (D / kDims);
  add_parts<kDims>(
      reinterpret_cast<const float2*>(a.partial_sums) + head * a.n_splits,
      reinterpret_cast<const float4*>(a.partial + head * a.n_splits * D + rank * kDims) + column * 32 + lane,
      D / 4, a.n_splits, group, lane, shared.sums[group][column * 32 + lane], shared.totals[group]);
  __syncthreads();
  if (thread < kDims) {
    const float* from = &shared.sums[0][0].x + thread;
    float sum = 0, total = 0;
#pragma unroll
    for (int w = 0; w < Room::kGroups; ++w) sum += from[w * kDims], total += shared.totals[w];
    const int d = decode_value(thread);
    shared.merged[d + d / 4] = total > 0 ? sum / total : 0.0f;
  }
  __syncthreads();
  const KvBasis basis = basis_of(a.kv.v_form);
  float x = thread < kDims ? shared.merged[thread + thread / 4] : 0;
  if constexpr (kHeadWide)
    x = leave_head_basis<D>(x, thread, rank, shared);
  else if (basis != KvBasis::kModel)
    x = leave_block_basis(basis, thread, shared);
  if (thread >= kDims) return;
  const int64_t at = head * D + rank * kDims + thread;
  a.out[at] = x;
  if (a.quant.q) quantize_group(x, lane, a.quant.q + at - lane, a.quant.meta + (at - lane) / 32);
}
template <int D, int kDims, bool kHeadWide>
__global__ void __launch_bounds__(32 * kWarps) merge_kernel(const __grid_constant__ AttentionArgs a) {
  merge_dims<D, kDims, kHeadWide>(a);
}
template <int D>
__global__ void KVASIR_CLUSTER(D / 128) __launch_bounds__(32 * kWarps)
    merge_cluster_kernel(const __grid_constant__ AttentionArgs a) {
  merge_dims<D, 128, true>(a);
}

}  // namespace

void merge_decode(const Launch& how, const AttentionArgs& args) {
  const bool wide = basis_of(args.kv.v_form) == KvBasis::kHeadWide;
  with_head_size<128, 256, 512>("attention merge", args.kv.head_dim, [&](auto size) {
    constexpr int D = size.value;
    // Of 128 values a block is the head, however many parts.
    const bool few = D == 128 || args.n_splits <= kAhead * Merge<D>::kGroups;
    const dim3 grid(unsigned(args.n_head * (few ? 1 : D / 128)), unsigned(args.n_rows));
    auto kernel = wide ? merge_kernel<D, D, true> : merge_kernel<D, D, false>;
    if constexpr (D > 128)
      if (!few) kernel = wide ? merge_cluster_kernel<D> : merge_kernel<D, 128, false>;
    launch(how, grid, dim3(32 * kWarps), 0, kernel, args);
  });
}

}  // namespace kvasir::cuda
