#include "backends/cuda/kernels/matvec/small_units.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct Kernel {
  FusedArgs a;
  int first_block[4];  // of each part
};

struct Shared {  // in front of the row's buffers
  float scratch[33];
  float y[32];
};

constexpr int kItems = kMaxFusedRow / (4 * kThreads);  // vectors of 4 values a thread holds

__device__ __forceinline__ float4 load_float4(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ __forceinline__ float square(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }
__device__ __forceinline__ float4 times(float4 a, float4 b, float s) {
  return {a.x * b.x * s, a.y * b.y * s, a.z * b.z * s, a.w * b.w * s};
}

// The row into shared memory as int8 groups; the first block stores the norms' outputs.
__device__ __forceinline__ void make_row(const NormArgs& a, int8_t* q, GroupMeta* meta, float* scratch) {
  const int n = a.n, t = int(threadIdx.x);
  const bool writes = blockIdx.x == 0;
  float4 v[kItems], r[kItems], w[kItems], w_second[kItems];
  constexpr float4 kOnes{1, 1, 1, 1}, kZeros{0, 0, 0, 0};
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int i = 4 * (t + j * kThreads);
    w[j] = a.w && i < n ? load_float4(a.w + i) : kOnes;
    w_second[j] = a.second && i < n ? load_float4(a.w_second + i) : kOnes;
  }
  wait_for_inputs();
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int i = 4 * (t + j * kThreads);
    v[j] = i < n ? load_float4(a.x + i) : kZeros;
    r[j] = a.residual && i < n ? load_float4(a.residual + i) : kZeros;
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kItems; ++j) sum += square(v[j]);
  const float inverse = rsqrtf(block_sum(sum, scratch) / float(n) + a.eps);
  sum = 0;
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int i = 4 * (t + j * kThreads);
    const float4 y = times(v[j], w[j], inverse);
    v[j] = {(y.x + r[j].x) * a.scale, (y.y + r[j].y) * a.scale, (y.z + r[j].z) * a.scale,
            (y.w + r[j].w) * a.scale};
    if (writes && i < n) *reinterpret_cast<float4*>(a.out + i) = v[j];
    sum += square(v[j]);
  }
  if (a.second) {
    const float inverse_second = rsqrtf(block_sum(sum, scratch) / float(n) + a.eps_second);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int i = 4 * (t + j * kThreads);
      v[j] = times(v[j], w_second[j], inverse_second);
      if (writes && i < n) *reinterpret_cast<float4*>(a.second + i) = v[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int first = t / 32 * 128 + j * 4 * kThreads;  // of the warp; n is a multiple of 128
    const float x[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
    if (first < n) quantize_lanes(x, t % 32, q + first, meta + first / 32);
  }
  __syncthreads();
}

// A warp takes R matrix rows at a time: R outputs, or R / 2 of a gated pair (then twice).
template <WeightForm F, int R>
__global__ void __launch_bounds__(kThreads, 3) fused_kernel(const __grid_constant__ Kernel k) {
  extern __shared__ __align__(16) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  constexpr int kUnroll = Unit<F>::kValues == 16 ? 3 : 2, kOutputs = kWarps * R;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, n_in = k.a.product.n_in;
  int p = 0;
  while (p + 1 < k.a.product.n_parts && int(blockIdx.x) >= k.first_block[p + 1]) ++p;
  const MatvecPart& part = k.a.product.parts[p];
  const bool gated = part.w2.form != WeightForm::kNone;
  const int output0 = (int(blockIdx.x) - k.first_block[p]) * kOutputs;
  const int n_units = n_in / Unit<F>::kValues;
  Unit<F> u[R][kUnroll];
  const auto load = [&](int batch, int base) {
#pragma unroll
    for (int j = 0; j < R; ++j) {
      const int local = gated ? warp * R + batch * (R / 2) + j % (R / 2) : warp * R + j;
      const MatrixView& w = gated && j >= R / 2 ? part.w2 : part.w;
      const int64_t row = part.first_row + min(output0 + local, part.n_out - 1);
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int unit = base + i * 32 + lane;
        u[j][i].load(w, row, unit, unit < n_units);
      }
    }
  };
  // The weights of this warp are on their way to L2 while the row is made.
  for (int j = lane; j < (gated ? 2 * R : R); j += 32) {
    const int local = warp * R + j % R;
    prefetch_row<F>(j >= R ? part.w2 : part.w, part.first_row + min(output0 + local, part.n_out - 1), 0,
                    n_units);
  }
  InputView input{nullptr, k.a.product.quant, n_in};
  const NormArgs& norm = k.a.norm;
  if (norm.x) {
    int8_t* q = reinterpret_cast<int8_t*>(memory + 272);
    GroupMeta* meta = reinterpret_cast<GroupMeta*>(q + n_in);
    make_row(norm, q, meta, shared.scratch);
    input.quant = {q, meta};
  } else {
    wait_for_inputs();
  }
  for (int batch = 0; batch < (gated ? 2 : 1); ++batch) {
    float acc[R] = {};
    for (int base = 0; base < n_units; base += 32 * kUnroll) {
      load(batch, base);
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int unit = min(base + i * 32 + lane, n_units - 1);
        const UnitInput<F> x(input, 0, unit);
#pragma unroll
        for (int j = 0; j < R; ++j) {
          u[j][i].unpack(unit);
          acc[j] = u[j][i].dot(x, acc[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < R; ++j) acc[j] = warp_sum(acc[j]);
    if (lane != 0) continue;
    if (gated)
#pragma unroll
      for (int j = 0; j < R / 2; ++j)
        shared.y[warp * R + batch * (R / 2) + j] = gelu_tanh(acc[j]) * acc[R / 2 + j];
    else
#pragma unroll
      for (int j = 0; j < R; ++j) shared.y[warp * R + j] = acc[j];
  }
  __syncthreads();
  if (warp != 0 || lane >= kOutputs) return;
  float y = shared.y[lane];
  const int output = output0 + lane;
  if (output < part.n_out) {
    MatvecPart plain = part;
    if (gated) plain.w2.form = WeightForm::kNone, plain.gelu = false;  // they are in already
    y = store_product(plain, 0, output, y, 0);
  }
  if constexpr (kOutputs == 32)
    if (k.a.quant_out.q)
      quantize_group(y, lane, k.a.quant_out.q + output0, k.a.quant_out.meta + output0 / 32);
}

template <WeightForm F, int R>
void start(const Launch& how, Kernel& k) {
  int blocks = 0;
  for (int p = 0; p < k.a.product.n_parts; ++p) {
    k.first_block[p] = blocks;
    blocks += (k.a.product.parts[p].n_out + kWarps * R - 1) / (kWarps * R);
  }
  const size_t n = size_t(k.a.product.n_in);
  const size_t bytes = 272 + (k.a.norm.x ? n + n / 32 * sizeof(GroupMeta) : 0);
  launch(how, dim3(unsigned(blocks)), dim3(kThreads), bytes, fused_kernel<F, R>, k);
}

template <WeightForm F>
void run(const Launch& how, const FusedArgs& args) {
  Kernel k{args, {0, 0, 0, 0}};
  int outputs = 0;
  bool gated = false;
  for (int p = 0; p < args.product.n_parts; ++p) {
    outputs += args.product.parts[p].n_out;
    gated = gated || args.product.parts[p].w2.form != WeightForm::kNone;
  }
  if (args.quant_out.q || gated || outputs >= 132 * 32)
    start<F, 4>(how, k);
  else
    start<F, 2>(how, k);
}

}  // namespace

void fused_matvec(const Launch& how, const FusedArgs& args) {
  switch (args.product.parts[0].w.form) {
    case WeightForm::kQ8:
      return run<WeightForm::kQ8>(how, args);
    case WeightForm::kQ4:
      return run<WeightForm::kQ4>(how, args);
    case WeightForm::kQ4M:
      return run<WeightForm::kQ4M>(how, args);
    case WeightForm::kQ5:
      return run<WeightForm::kQ5>(how, args);
    case WeightForm::kQ5M:
      return run<WeightForm::kQ5M>(how, args);
    case WeightForm::kQ4K:
      return run<WeightForm::kQ4K>(how, args);
    case WeightForm::kQ5K:
      return run<WeightForm::kQ5K>(how, args);
    case WeightForm::kQ6K:
      return run<WeightForm::kQ6K>(how, args);
    case WeightForm::kQ2K:
      return run<WeightForm::kQ2K>(how, args);
    case WeightForm::kQ3K:
      return run<WeightForm::kQ3K>(how, args);
    case WeightForm::kIq4Nl:
      return run<WeightForm::kIq4Nl>(how, args);
    case WeightForm::kIq4Xs:
      return run<WeightForm::kIq4Xs>(how, args);
    default:
      return;
  }
}

}  // namespace kvasir::cuda
