// Compiled without fused multiply-add: encoded bytes must be the scalar codec's.
#include "backends/cuda/kernels/kv_append/kv_append.h"

#include "backends/cuda/kernels/kv_append/head_tables.cuh"

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

// The scalar codec's fold of 32 strided sums, one a lane; lane 0's result to all.
__device__ __forceinline__ float fold(float s) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) s = __fadd_rn(s, __shfl_down_sync(~0u, s, width));
  return __shfl_sync(~0u, s, 0);
}

__device__ void encode_q8_0(const __half* x, int d, int token, uint8_t* to, int lane) {
  __half* scales = reinterpret_cast<__half*>(to + int64_t(kPage) * d) + token * (d / 32);
  for (int b = 0; b < d / 32; ++b) {
    const float v = __half2float(x[b * 32 + lane]);
    const __half scale = __float2half_rn(__fdiv_rn(warp_max(fabsf(v)), 127.0f));
    const float s = __half2float(scale), inverse = s != 0.0f ? __fdiv_rn(1.0f, s) : 0.0f;
    const float code = fminf(fmaxf(__fmul_rn(v, inverse), -127.0f), 127.0f);
    to[int64_t(token) * d + b * 32 + lane] = uint8_t(int8_t(__float2int_rn(code)));
    if (lane == 0) scales[b] = scale;
  }
}

template <int b>
__device__ void encode_head_wide(const __half* x, int d, int token, uint8_t* to, int lane, uint8_t* codes) {
  const float* level = kHeadTables.level[b - 2][size_index(d)];
  const float* midpoint = kHeadTables.midpoint[b - 2][size_index(d)];
  const int row_bytes = d / 8 * b;
  uint8_t* row = to + int64_t(token) * row_bytes;
  __half* scales = reinterpret_cast<__half*>(to + int64_t(kPage) * row_bytes);
  float squares = 0;
  for (int i = lane; i < d; i += 32) {
    const float v = __half2float(x[i]);
    squares = __fadd_rn(squares, __fmul_rn(v, v));
  }
  const float mean = __fmul_rn(fold(squares), __fdiv_rn(1.0f, float(d)));
  const float inverse = mean == 0 ? 0.0f : __fdiv_rn(1.0f, __fsqrt_rn(mean));
  float products = 0, levels = 0;
  for (int i = lane; i < d; i += 32) {
    const float v = __half2float(x[i]), u = __fmul_rn(v, inverse);
    int code = 0;
#pragma unroll
    for (int m = 0; m + 1 < (1 << b); ++m) code += midpoint[m] < u;
    codes[i] = uint8_t(code);
    products = __fadd_rn(products, __fmul_rn(v, level[code]));
    levels = __fadd_rn(levels, __fmul_rn(level[code], level[code]));
  }
  const float exact = __fdiv_rn(fold(products), fold(levels));
  const __half scale =
      mean == 0 ? __float2half_rn(0.0f) : __float2half_rn(fminf(fmaxf(exact, -65504.0f), 65504.0f));
  const bool zero = __half_as_ushort(scale) == 0;
  __syncwarp();
  for (int g = lane; g < d / 8; g += 32) {
    uint32_t packed = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) packed |= uint32_t(codes[8 * g + j]) << (b * j);
    if (zero) packed = 0;
#pragma unroll
    for (int j = 0; j < b; ++j) row[g * b + j] = uint8_t(packed >> (8 * j));
  }
  if (lane == 0) scales[token] = scale;
  __syncwarp();
}

// Row `token` of one head and side by a warp; `codes`: 512 bytes of shared memory.
__device__ void encode_row(KvForm form, const __half* x, int d, int token, uint8_t* to, int lane,
                           uint8_t* codes) {
  switch (form) {
    case KvForm::kQ8_0:
      return encode_q8_0(x, d, token, to, lane);
    case KvForm::kTbq2H:
      return encode_head_wide<2>(x, d, token, to, lane, codes);
    case KvForm::kTbq3H:
      return encode_head_wide<3>(x, d, token, to, lane, codes);
    case KvForm::kTbq4H:
      return encode_head_wide<4>(x, d, token, to, lane, codes);
    default:
      return;
  }
}

template <int E>
__device__ void store_head(const HeadArgs& a, const StepView& step, int side, int head, int r, float (&x)[E],
                           int lane) {
  constexpr int kDim = 32 * E;
  const KvView& kv = a.kv;
  const graph::Row row = step.rows[r];
  const KvForm form = side ? kv.v_form : kv.k_form;
  const int token = row.pos % kPage, page = row.pos / kPage;
  if (head_wide(form)) warp_rotate(side, x, lane);
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
#pragma unroll
    for (int i = 0; i < E; ++i) {
      const __half h = __float2half_rn(x[i]);
      to[int64_t(token) * kDim + lane * E + i] = h;
      finite &= (__half_as_ushort(h) & 0x7c00u) != 0x7c00u;
    }
  }
  if (!finite && atomicCAS(a.fault, -1, a.layer) == -1) a.fault[1] = r;
}

template <int E>
__device__ void run_job(const HeadArgs& a, const HeadJob& job, const StepView& step, int r, int head,
                        int lane, float* smem) {
  constexpr int kDim = 32 * E;
  const int step_row = job.output_rows ? step.out_rows[r] : r;
  const graph::Row row = step.rows[step_row];
  const SequenceInfo seq = step.sequences[row.seq];
  const float* in = job.in + (int64_t(r) * job.n_head + head) * kDim;
  float x[E];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    x[i] = in[lane * E + i];
    sum += x[i] * x[i];
  }
  if (job.norm) {
    const float inverse = 1.0f / sqrtf(warp_sum(sum) / float(kDim) + job.eps);
#pragma unroll
    for (int i = 0; i < E; ++i)
      x[i] = (job.w ? x[i] * inverse * job.w[lane * E + i] : x[i] * inverse) * job.scale;
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
#pragma unroll
      for (int i = 0; i < E; ++i) smem[lane * E + i] = base[i];
      __syncwarp();
      for (int i = lane; i < job.n_pairs; i += 32) {
        const float c = turns[i], s = turns[job.n_pairs + i], p = smem[i], q = smem[i + job.half];
        smem[i] = p * c - q * s;
        smem[i + job.half] = q * c + p * s;
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < E; ++i) x[i] = smem[lane * E + i];
    }
    if (job.rotate) warp_rotate(0, x, lane);
    float* out = variant == 1 ? job.out_shifted : job.out;
    if (out)
#pragma unroll
      for (int i = 0; i < E; ++i) out[(int64_t(r) * job.n_head + head) * kDim + lane * E + i] = x[i];
  }
  if (job.side >= 0) store_head(a, step, job.side, head, r, x, lane);
}

// kEncode: a block of 16 warps a head, the first works on the head, all encode the page it fills. Otherwise a
// warp a head.
template <int E, bool kEncode>
__global__ void __launch_bounds__(kEncode ? 512 : 128)
    heads_kernel(const __grid_constant__ HeadArgs a, StepView step) {
  __shared__ float smem[kEncode ? 1 : 4][32 * E];
  __shared__ uint8_t codes[kEncode ? 16 : 1][32 * E];
  let_next_start();
  wait_for_inputs();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, r = int(blockIdx.y);
  int head = kEncode ? int(blockIdx.x) : int(blockIdx.x) * 4 + warp, j = 0;
  while (j < a.n_jobs && head >= a.jobs[j].n_head) head -= a.jobs[j++].n_head;
  if (j == a.n_jobs) return;
  const HeadJob& job = a.jobs[j];
  if (!kEncode || warp == 0) run_job<E>(a, job, step, r, head, lane, smem[kEncode ? 0 : warp]);
  if constexpr (kEncode) {
    if (job.side < 0) return;
    const graph::Row row = step.rows[r];
    const KvForm form = job.side ? a.kv.v_form : a.kv.k_form;
    if (!open_page(form) || row.pos % kPage != kPage - 1) return;
    __syncthreads();
    const int page = row.pos / kPage;
    const __half* from = exact_region(a.kv, table(step, a.kv, row.seq, true)[page], head, job.side);
    uint8_t* to = region(a.kv, table(step, a.kv, row.seq, false)[page], head, job.side);
    for (int token = warp; token < kPage; token += 16)
      encode_row(form, from + token * 32 * E, 32 * E, token, to, lane, codes[warp]);
  }
}

__global__ void __launch_bounds__(512) encode_kernel(KvView kv, StepView step) {
  __shared__ uint8_t codes[16][512];
  let_next_start();
  wait_for_inputs();
  const graph::Row row = step.rows[blockIdx.x];
  const int head = int(blockIdx.y), side = int(blockIdx.z), page = row.pos / kPage;
  const KvForm form = side ? kv.v_form : kv.k_form;
  if (row.pos % kPage != kPage - 1 || !open_page(form)) return;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, d = kv.head_dim;
  const __half* from = exact_region(kv, table(step, kv, row.seq, true)[page], head, side);
  uint8_t* to = region(kv, table(step, kv, row.seq, false)[page], head, side);
  for (int token = warp; token < kPage; token += 16)
    encode_row(form, from + int64_t(token) * d, d, token, to, lane, codes[warp]);
}

template <int E>
void run(const Launch& how, const HeadArgs& args, const StepView& step, int n_rows, bool encode) {
  int heads = 0;
  for (int j = 0; j < args.n_jobs; ++j) heads += args.jobs[j].n_head;
  if (encode)
    launch(how, dim3(unsigned(heads), unsigned(n_rows)), dim3(512), 0, heads_kernel<E, true>, args, step);
  else
    launch(how, dim3(unsigned(heads + 3) / 4, unsigned(n_rows)), dim3(128), 0, heads_kernel<E, false>, args,
           step);
}

}  // namespace

void run_heads(const Launch& how, const HeadArgs& args, const StepView& step, int n_rows, bool encode) {
  bool stores = false;
  for (int j = 0; j < args.n_jobs; ++j) stores = stores || args.jobs[j].side >= 0;
  encode = encode && stores && (open_page(args.kv.k_form) || open_page(args.kv.v_form));
  switch (args.head_dim) {
    case 64:
      return run<2>(how, args, step, n_rows, encode);
    case 128:
      return run<4>(how, args, step, n_rows, encode);
    case 256:
      return run<8>(how, args, step, n_rows, encode);
    case 512:
      return run<16>(how, args, step, n_rows, encode);
    default:
      return;
  }
}

void encode_pages(const Launch& how, const KvView& kv, const StepView& step, int n_rows) {
  if (open_page(kv.k_form) || open_page(kv.v_form))
    launch(how, dim3(unsigned(n_rows), unsigned(kv.n_kv), 2), dim3(512), 0, encode_kernel, kv, step);
}

}  // namespace kvasir::cuda
