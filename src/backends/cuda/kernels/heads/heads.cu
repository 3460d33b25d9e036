#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/heads/heads.h"
#include "backends/cuda/kernels/kv_append/fits.cuh"

namespace kvasir::cuda {
namespace {

// Threads share a row of `D` floats of shared memory: `a` and `b` are used in turn, so that one barrier
// between a write and the reads is enough.
template <int D>
struct Exchange {
  float a[D], b[D], sums[32];
  uint8_t codes[D];
};

template <int D>
__device__ __forceinline__ float head_sum(float v, float* sums) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) sum += sums[i];
  return sum;
}

// H_D x / sqrt(D), adds in the scalar codec's order: distances below 32 within the warp, then each thread
// adds up what reaches its value.
template <int D>
__device__ __forceinline__ float head_hadamard(float x, float* row) {
  constexpr int kLevels = D == 64 ? 1 : D == 128 ? 2 : D == 256 ? 3 : 4;
  const int t = int(threadIdx.x);
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const float other = __shfl_xor_sync(~0u, x, o);
    x = (t & o) ? __fsub_rn(other, x) : __fadd_rn(x, other);
  }
  row[t] = x;
  __syncthreads();
  float v[D / 32];
#pragma unroll
  for (int j = 0; j < D / 32; ++j) v[j] = row[j * 32 + t % 32];
#pragma unroll
  for (int level = 0; level < kLevels; ++level)
#pragma unroll
    for (int j = 0; j < D / 64 >> level; ++j)
      v[j] = __fadd_rn(v[2 * j], (t & (32 << level)) ? -v[2 * j + 1] : v[2 * j + 1]);
  constexpr float kNorm = D == 64    ? 0.125f
                          : D == 128 ? 0.08838834764831845f
                          : D == 256 ? 0.0625f
                                     : 0.04419417382415922f;
  return __fmul_rn(v[0], kNorm);
}

template <int D>
__device__ __forceinline__ void store_value(const HeadArgs& a, const StepView& step, int side, int head,
                                            int r, const graph::Row& row, float x, Exchange<D>& shared) {
  const KvForm form = side ? a.kv.v_form : a.kv.k_form;
  const int page = row.pos / kPage;
  // The row's own page is exact.
  uint8_t* to = const_cast<uint8_t*>(find_region(a.kv, step, row.seq, page, page, head, side).data);
  const int at = row.pos % kPage * D + int(threadIdx.x);
  bool finite;
  if (form == KvForm::kF32) {
    reinterpret_cast<float*>(to)[at] = x;
    finite = isfinite(x);
  } else if (form == KvForm::kBf16) {
    const uint32_t bits = __float_as_uint(x), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    reinterpret_cast<uint16_t*>(to)[at] = uint16_t(rounded);
    finite = (rounded & 0x7f80u) != 0x7f80u && isfinite(x);
  } else {
    const __half h = __float2half_rn(x);
    reinterpret_cast<__half*>(to)[at] = h;
    finite = (__half_as_ushort(h) & 0x7c00u) != 0x7c00u;
    if (open_page(form) && !__syncthreads_and(fabsf(x) <= kAlwaysFits) && threadIdx.x < 32)
      finite &= stored_row_fits(form, reinterpret_cast<const __half*>(to) + row.pos % kPage * D, D,
                                int(threadIdx.x), shared.codes);
  }
  if (!finite && atomicCAS(a.fault, -1, a.layer) == -1) a.fault[1] = r;
}

template <int D>
__global__ void __launch_bounds__(D) few_heads_kernel(const __grid_constant__ HeadArgs a, StepView step) {
  __shared__ Exchange<D> shared;
  let_next_start();
  const int t = int(threadIdx.x), r = int(blockIdx.y);
  int head = int(blockIdx.x), j = 0;
  while (head >= a.jobs[j].n_head) head -= a.jobs[j++].n_head;
  const HeadJob& job = a.jobs[j];
  const float weight = job.norm && job.w ? job.w[t] * job.scale : job.scale;
  const int64_t at = (int64_t(r) * job.n_head + head) * D + t;
  wait_for_inputs();
  const int step_row = job.output_rows ? step.out_rows[r] : r;
  const graph::Row row = step.rows[step_row];
  const SequenceInfo seq = step.sequences[row.seq];
  float base = job.in[at];
  if (job.norm) base *= rsqrtf(head_sum<D>(base * base, shared.sums) * (1.0f / D) + job.eps) * weight;
  const bool query = job.side < 0 && job.out_shifted;
  const int variants = query && seq.shift != 0 ? 2 : 1;
  float x = base;
#pragma unroll 1
  for (int variant = 0; variant < variants; ++variant) {
    x = base;
    if (variant > 0) __syncthreads();  // before the row is written again
    if (job.turns) {
      // Keys are stored at the position they were written for, with the shift already in it.
      const bool shifted = variant == 1 || (!query && seq.shift != 0 && row.pos / kPage >= seq.keep_pages);
      const float* turns = job.turns + (int64_t(shifted) * job.max_rows + step_row) * 2 * job.n_pairs;
      shared.a[t] = x;
      __syncthreads();
      const bool upper = t >= job.half;
      const int pair = upper ? t - job.half : t;
      if (pair < job.n_pairs) {
        const float c = turns[pair], s = turns[job.n_pairs + pair];
        const float other = shared.a[upper ? pair : pair + job.half];
        x = upper ? x * c + other * s : x * c - other * s;
      }
    }
    if (job.basis == KvBasis::kHeadWide) x = head_hadamard<D>(flip_sign(0, t, x), shared.b);
    float* out = variant == 1 ? job.out_shifted : job.out;
    if (out) out[at] = x;
  }
  if (job.side < 0) return;
  if (head_wide(job.side ? a.kv.v_form : a.kv.k_form))
    x = head_hadamard<D>(flip_sign(job.side, t, x), shared.b);
  store_value<D>(a, step, job.side, head, r, row, x, shared);
}

template <int D>
void run(const Launch& how, const HeadArgs& args, const StepView& step, int n_rows) {
  int heads = 0;
  for (int j = 0; j < args.n_jobs; ++j) heads += args.jobs[j].n_head;
  launch(how, dim3(unsigned(heads), unsigned(n_rows)), dim3(D), 0, few_heads_kernel<D>, args, step);
}

}  // namespace

bool has_few_heads(const HeadArgs& args) {
  for (int j = 0; j < args.n_jobs; ++j) {
    const HeadJob& job = args.jobs[j];
    if (job.basis != KvBasis::kModel && job.basis != KvBasis::kHeadWide) return false;
    if (job.side >= 0 && !(few_form(args.kv.k_form) && few_form(args.kv.v_form))) return false;
  }
  return true;
}

void run_few_heads(const Launch& how, const HeadArgs& args, const StepView& step, int n_rows) {
  with_head_size<64, 128, 256, 512>("few heads", args.head_dim,
                                    [&](auto size) { run<size.value>(how, args, step, n_rows); });
}

}  // namespace kvasir::cuda
