// Parts of a prompt's rows: few of them, many rows. A warp merges one head of one row. Bound: a read of the
// parts.
#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/attention/prompt.h"
#include "backends/cuda/kernels/kv_append/head_tables.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kWarps = 8;

template <int E>
__global__ void __launch_bounds__(32 * kWarps) merge_rows_kernel(const __grid_constant__ AttentionArgs a) {
  constexpr int kDim = 32 * E;
  let_next_start();
  wait_for_inputs();
  const int lane = int(threadIdx.x) % 32;
  const int64_t head = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (head >= int64_t(a.n_rows) * a.n_head) return;
  const float2* ms = reinterpret_cast<const float2*>(a.partial_sums) + head * a.n_splits;
  float largest = -INFINITY;
  for (int s = 0; s < a.n_splits; ++s) largest = fmaxf(largest, ms[s].x);
  float x[E] = {}, total = 0;
  for (int s = 0; s < a.n_splits; ++s) {
    const float2 part = ms[s];
    if (part.y == 0) continue;  // a part without work left nothing
    const float w = __expf(part.x - largest);
    total += w * part.y;
    const float4* from =
        reinterpret_cast<const float4*>(a.partial + (head * a.n_splits + s) * kDim + lane * E);
#pragma unroll
    for (int i = 0; i < E / 4; ++i) {
      const float4 v = from[i];
      x[4 * i] += w * v.x, x[4 * i + 1] += w * v.y, x[4 * i + 2] += w * v.z, x[4 * i + 3] += w * v.w;
    }
  }
  const float inverse = total > 0 ? 1.0f / total : 0.0f;
#pragma unroll
  for (int i = 0; i < E; ++i) x[i] *= inverse;
  const KvBasis basis = basis_of(a.kv.v_form);
  if (basis == KvBasis::kHeadWide)
    warp_unrotate(1, x, lane);
  else if (basis != KvBasis::kModel)
    warp_from_basis(basis, 1, x, lane);
  float4* to = reinterpret_cast<float4*>(a.out + head * kDim + lane * E);
#pragma unroll
  for (int i = 0; i < E / 4; ++i) to[i] = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
  if (a.quant.q) quantize_lanes(x, lane, a.quant.q + head * kDim, a.quant.meta + head * E);
}

}  // namespace

void merge_rows(const Launch& how, const AttentionArgs& args) {
  with_head_size<256, 512>("attention merge of prompts", args.kv.head_dim, [&](auto size) {
    const int64_t heads = int64_t(args.n_rows) * args.n_head;
    launch(how, dim3(unsigned((heads + kWarps - 1) / kWarps)), dim3(32 * kWarps), 0,
           merge_rows_kernel<size.value / 32>, args);
  });
}

}  // namespace kvasir::cuda
