// Heads of one row, a warp each: norm, turn and rotation. A lane holds H = D / 64 values of each half of the
// head, from lane * H on: what turns together, so that only the norm and the rotation pass values between
// lanes. What is known before the projections are there is in registers by then.
#pragma once
#include "backends/cuda/kernels/kv_append/head_tables.cuh"
#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/near/near.h"

namespace kvasir::cuda {

// What a warp needs to make a head, but its input.
template <int H>
struct HeadPlan {
  const float* in;     // of this lane
  const float* turns;  // cosines of this lane's pairs; null: no turn. Sines are n_pairs further on
  int n_pairs;
  float w[2][H];      // of the norm; zeros where there is no head
  uint32_t signs[2];  // of the rotation: bit i of value i
  float eps, scale;
  bool norm;
};

// `head`: of the job's; `ready`: heads that were made before, when the job has no input.
template <int H>
__device__ __forceinline__ HeadPlan<H> plan_head(const NearJob& job, const float* ready, int n_head, int side,
                                                 int head, int r, int step_row, bool works, int lane) {
  HeadPlan<H> plan;
  const int n = job.in ? job.n_head : n_head;
  plan.in = (job.in ? job.in : ready) + (int64_t(r) * n + head) * (64 * H) + lane * H;
  plan.n_pairs = job.n_pairs;
  plan.turns = job.turns ? job.turns + int64_t(step_row) * 2 * job.n_pairs + lane * H : nullptr;
  plan.eps = job.eps, plan.scale = job.scale, plan.norm = job.norm;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < H; ++i) plan.w[half][i] = works ? 1.0f : 0.0f;
    if (works && job.w) load_values(job.w + half * 32 * H + lane * H, plan.w[half]);
    plan.signs[half] = signs_from<H>(side, half * 32 * H + lane * H);
    asm volatile("" : "+r"(plan.signs[half]));  // not later
  }
  return plan;
}

// H_D x / sqrt(D) with signs, adds in the scalar codec's order.
template <int H>
__device__ __forceinline__ void rotate_halves(const uint32_t (&signs)[2], float (&x)[2][H], int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    flip_signs(signs[half], x[half]);
    lane_hadamard(x[half]);
  }
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    exchange(x[0], lane, o);
    exchange(x[1], lane, o);
  }
#pragma unroll
  for (int i = 0; i < H; ++i) {
    const float a = x[0][i], b = x[1][i];
    x[0][i] = __fmul_rn(__fadd_rn(a, b), kHeadNorm<64 * H>);
    x[1][i] = __fmul_rn(__fsub_rn(a, b), kHeadNorm<64 * H>);
  }
}

// Turned pairs: value i of the first half with value i of the second.
template <int H>
__device__ __forceinline__ void load_turns(const HeadPlan<H>& plan, int lane, float (&c)[H], float (&s)[H]) {
  constexpr int kEach = H < 4 ? H : 4;  // pairs are a multiple of four
#pragma unroll
  for (int i = 0; i < H; i += kEach) {
    float cosines[kEach], sines[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) cosines[k] = 1, sines[k] = 0;
    if (plan.turns && lane * H + i < plan.n_pairs) {
      load_values(plan.turns + i, cosines);
      load_values(plan.turns + plan.n_pairs + i, sines);
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) c[i + k] = cosines[k], s[i + k] = sines[k];
  }
}

// kBlocks: of any basis; otherwise of the model's or the head-wide one.
template <int H, bool kBlocks>
__device__ __forceinline__ void make_head(const HeadPlan<H>& plan, KvBasis basis, int side, int lane,
                                          float (&x)[2][H]) {
  float c[H], s[H], sum = 0;
  load_values(plan.in, x[0]);
  load_values(plan.in + 32 * H, x[1]);
  load_turns(plan, lane, c, s);
#pragma unroll
  for (int i = 0; i < H; ++i) sum += x[0][i] * x[0][i] + x[1][i] * x[1][i];
  const float inverse = plan.norm ? rsqrtf(warp_sum(sum) * (1.0f / (64 * H)) + plan.eps) * plan.scale : 1.0f;
#pragma unroll
  for (int i = 0; i < H; ++i) {
    const float a = x[0][i] * inverse * plan.w[0][i], b = x[1][i] * inverse * plan.w[1][i];
    x[0][i] = a * c[i] - b * s[i];
    x[1][i] = b * c[i] + a * s[i];
  }
  if (basis == KvBasis::kHeadWide) {
    rotate_halves(plan.signs, x, lane);
  } else if constexpr (kBlocks) {  // each lies in one half
    warp_to_basis(basis, side, x[0], lane);
    warp_to_basis(basis, side, x[1], lane);
  }
}

// H values as a row is stored, two a word; one at H = 1.
template <bool kBf16, int H>
__device__ __forceinline__ void pack_row(const float (&x)[H], uint32_t (&h)[(H + 1) / 2]) {
#pragma unroll
  for (int i = 0; i < H; i += 2) {
    const float high = i + 1 < H ? x[(i + 1) % H] : 0.0f;
    h[i / 2] = kBf16 ? bf16_pair(x[i], high) : as_word(__floats2half2_rn(x[i], high));
  }
}
template <int H>
__device__ __forceinline__ void store_words(__half* to, const uint32_t (&h)[(H + 1) / 2]) {
  if constexpr (H == 1) *reinterpret_cast<uint16_t*>(to) = uint16_t(h[0]);
  if constexpr (H == 2) *reinterpret_cast<uint32_t*>(to) = h[0];
  if constexpr (H == 4) *reinterpret_cast<uint2*>(to) = {h[0], h[1]};
  if constexpr (H == 8) *reinterpret_cast<uint4*>(to) = {h[0], h[1], h[2], h[3]};
}

}  // namespace kvasir::cuda
