#include "backends/cuda/kernels/elementwise/elementwise.h"

#include <algorithm>

#include "backends/cuda/kernels/common.cuh"

namespace kvasir::cuda {
namespace {

__global__ void norm_kernel(NormArgs a) {
  extern __shared__ float row[];
  __shared__ float scratch[33];
  let_next_start();
  float* residual = row + a.n;
  const int n = a.n, threads = int(blockDim.x), t = int(threadIdx.x);
  const int64_t at = int64_t(blockIdx.x) * n;
  for (int i = 32 * t; i < n; i += 32 * threads) {  // a line of each weight, while the inputs are made
    if (a.w) asm volatile("prefetch.global.L1 [%0];" ::"l"(a.w + i));
    if (a.second) asm volatile("prefetch.global.L1 [%0];" ::"l"(a.w_second + i));
  }
  wait_for_inputs();
  float sum = 0;
  for (int i = 4 * t; i < n; i += 4 * threads) {
    const float4 v = *reinterpret_cast<const float4*>(a.x + at + i);
    if (a.residual)
      *reinterpret_cast<float4*>(residual + i) = *reinterpret_cast<const float4*>(a.residual + at + i);
    *reinterpret_cast<float4*>(row + i) = v;
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  const float inverse = rsqrtf(block_sum(sum, scratch) / float(n) + a.eps);
  sum = 0;
  for (int i = 4 * t; i < n; i += 4 * threads) {
    float4 v = *reinterpret_cast<const float4*>(row + i);
    v = {v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse};
    if (a.w) {
      const float4 w = *reinterpret_cast<const float4*>(a.w + i);
      v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
    }
    if (a.residual) {
      const float4 r = *reinterpret_cast<const float4*>(residual + i);
      v = {v.x + r.x, v.y + r.y, v.z + r.z, v.w + r.w};
    }
    v = {v.x * a.scale, v.y * a.scale, v.z * a.scale, v.w * a.scale};
    *reinterpret_cast<float4*>(row + i) = v;
    *reinterpret_cast<float4*>(a.out + at + i) = v;
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  if (a.second) {
    const float inverse_second = rsqrtf(block_sum(sum, scratch) / float(n) + a.eps_second);
    for (int i = 4 * t; i < n; i += 4 * threads) {
      float4 v = *reinterpret_cast<const float4*>(row + i);
      const float4 w = *reinterpret_cast<const float4*>(a.w_second + i);
      v = {v.x * inverse_second * w.x, v.y * inverse_second * w.y, v.z * inverse_second * w.z,
           v.w * inverse_second * w.w};
      *reinterpret_cast<float4*>(row + i) = v;
      *reinterpret_cast<float4*>(a.second + at + i) = v;
    }
  }
  if (!a.quant.q) return;
  __syncthreads();
  const int lane = t % 32;
  for (int first = t / 32 * 128; first < n; first += threads * 4) {
    float v[4] = {};
    if (first + 4 * lane < n) {
      const float4 x = *reinterpret_cast<const float4*>(row + first + 4 * lane);
      v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    }
    if (first + 128 <= n)
      quantize_lanes(v, lane, a.quant.q + at + first, a.quant.meta + (at + first) / 32);
    else  // the last groups of a row, one at a time
      for (int g = first; g < n; g += 32)
        quantize_group(row[g + lane], lane, a.quant.q + at + g, a.quant.meta + (at + g) / 32);
  }
}

__global__ void quantize_kernel(const float* x, int64_t n_groups, QuantRows out) {
  let_next_start();
  wait_for_inputs();
  const int64_t g = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32 * 4;
  const int lane = int(threadIdx.x) % 32;
  if (g + 4 <= n_groups) {
    const float4 f = *reinterpret_cast<const float4*>(x + g * 32 + 4 * lane);
    const float v[4] = {f.x, f.y, f.z, f.w};
    quantize_lanes(v, lane, out.q + g * 32, out.meta + g);
    return;
  }
  for (int64_t i = g; i < n_groups; ++i) quantize_group(x[i * 32 + lane], lane, out.q + i * 32, out.meta + i);
}

__global__ void half_kernel(const float* x, int n, __half* y, float* scale) {
  __shared__ float scratch[32];
  let_next_start();
  wait_for_inputs();
  const int64_t at = int64_t(blockIdx.x) * n;
  const int t = int(threadIdx.x), threads = int(blockDim.x);
  float largest = 0;
  for (int i = 4 * t; i < n; i += 4 * threads) {
    const float4 v = *reinterpret_cast<const float4*>(x + at + i);
    largest = fmaxf(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))), largest);
  }
  largest = warp_max(largest);
  if (t % 32 == 0) scratch[t / 32] = largest;
  __syncthreads();
  largest = warp_max(t % 32 < threads / 32 ? scratch[t % 32] : 0.0f);
  const float s = largest > 0 ? largest / 1024.0f : 1.0f, inverse = 1.0f / s;
  if (t == 0) scale[blockIdx.x] = s;
  for (int i = 4 * t; i < n; i += 4 * threads) {
    const float4 v = *reinterpret_cast<const float4*>(x + at + i);
    const __half2 h[2] = {__floats2half2_rn(v.x * inverse, v.y * inverse),
                          __floats2half2_rn(v.z * inverse, v.w * inverse)};
    *reinterpret_cast<uint2*>(y + at + i) = *reinterpret_cast<const uint2*>(h);
  }
}

__global__ void select_kernel(const float* x, StepView step, int n, float* out) {
  let_next_start();
  wait_for_inputs();
  const int i = 4 * int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  *reinterpret_cast<float4*>(out + int64_t(blockIdx.y) * n + i) =
      *reinterpret_cast<const float4*>(x + int64_t(step.out_rows[blockIdx.y]) * n + i);
}

__global__ void rope_table_kernel(RopeTableArgs a, StepView step) {
  let_next_start();
  wait_for_inputs();
  const int r = blockIdx.x, shifted = blockIdx.y;
  const graph::Row row = step.rows[r];
  const double pos = double(row.pos) + (shifted ? double(step.sequences[row.seq].shift) : 0.0);
  float* out = a.turns + (int64_t(shifted) * a.max_rows + r) * 2 * a.n_pairs;
  for (int i = int(threadIdx.x); i < a.n_pairs; i += int(blockDim.x)) {
    double s, c;
    sincos(pos * a.frequency[i], &s, &c);
    out[i] = float(c);
    out[a.n_pairs + i] = float(s);
  }
}

}  // namespace

void norm_rows(const Launch& how, const NormArgs& args, int n_rows) {
  const int threads = std::clamp((args.n / 4 + 31) / 32 * 32, 64, 512);
  launch(how, dim3(unsigned(n_rows)), dim3(unsigned(threads)), size_t(args.n) * 2 * sizeof(float),
         norm_kernel, args);
}

void quantize_rows(const Launch& how, const float* x, int n, int n_rows, const QuantRows& out) {
  const int64_t groups = int64_t(n) * n_rows / 32;
  launch(how, dim3(unsigned((groups + 15) / 16)), dim3(128), 0, quantize_kernel, x, groups, out);
}

void half_rows(const Launch& how, const float* x, int n, int n_rows, uint16_t* y, float* scale) {
  launch(how, dim3(unsigned(n_rows)), dim3(256), 0, half_kernel, x, n, reinterpret_cast<__half*>(y), scale);
}

bool has_code_for_device() { return kernel_loads(reinterpret_cast<const void*>(select_kernel)); }

void select_rows(const Launch& how, const float* x, const StepView& step, int n, int n_out, float* out) {
  launch(how, dim3(unsigned((n / 4 + 127) / 128), unsigned(n_out)), dim3(128), 0, select_kernel, x, step, n,
         out);
}

void fill_rope_table(const Launch& how, const RopeTableArgs& args, const StepView& step, int n_rows) {
  if (args.n_pairs > 0) launch(how, dim3(unsigned(n_rows), 2), dim3(128), 0, rope_table_kernel, args, step);
}

}  // namespace kvasir::cuda
