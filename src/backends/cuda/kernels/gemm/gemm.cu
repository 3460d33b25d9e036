#include <algorithm>

#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/gemm/gemm.h"
#include "backends/cuda/kernels/gemm/groups.h"
#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/weights/weights.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256, kDepth = 32,
              kStride = kDepth + 8;  // padded rows: ldmatrix without bank conflicts
constexpr int kStages = 4;

template <int BM, int BN>
struct Shared {
  __half x[kStages][BM][kStride], w[kStages][BN][kStride];
};

__device__ __forceinline__ void store(const GemmArgs& args, int r, int c, float y0, float y1) {
  const GemmPart& a = args.parts[0];
  if (r >= args.n_rows || c >= a.n_out) return;
  float y[2] = {y0 * args.x_scale[r], y1 * args.x_scale[r]};
  const int64_t at = int64_t(r) * a.out_stride + c;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (a.gelu) y[i] = gelu_tanh(y[i]);
    if (a.mul) y[i] *= a.mul[int64_t(r) * a.mul_stride + c + i];
    if (a.residual) y[i] += a.residual[at + i];
    if (a.softcap > 0) y[i] = a.softcap * tanhf(y[i] / a.softcap);
  }
  *reinterpret_cast<float2*>(a.out + at) = {y[0], y[1]};
}

// 8 warps as 2 x 4; a warp makes BM / 2 rows by BN / 4 columns.
template <int BM, int BN>
__global__ void __launch_bounds__(kThreads) gemm_kernel(const __grid_constant__ GemmArgs a) {
  const GemmPart& part = a.parts[0];
  const uint16_t* weights = reinterpret_cast<const uint16_t*>(part.w.codes) + int64_t(part.first_row) * a.n_in;
  constexpr int kRowTiles = BM / 2 / 16, kColumnTiles = BN / 4 / 8;
  extern __shared__ __align__(16) uint8_t memory[];
  Shared<BM, BN>& shared = *reinterpret_cast<Shared<BM, BN>*>(memory);
  let_next_start();
  wait_for_inputs();
  const int t = int(threadIdx.x), warp = t / 32, lane = t % 32;
  const int row0 = int(blockIdx.x) * BM, column0 = int(blockIdx.y) * BN;
  const int n_steps = a.n_in / kDepth;
  const auto load = [&](int step) {
    if (step < n_steps) {
      const int stage = step % kStages, k = step * kDepth;
      for (int i = t; i < BM * 4; i += kThreads) {
        const int r = i / 4, c = i % 4 * 8;
        const bool valid = row0 + r < a.n_rows;
        copy_async(&shared.x[stage][r][c], a.x + int64_t(valid ? row0 + r : 0) * a.n_in + k + c, valid);
      }
      for (int i = t; i < BN * 4; i += kThreads) {
        const int r = i / 4, c = i % 4 * 8;
        const bool valid = column0 + r < part.n_out;
        copy_async(&shared.w[stage][r][c], weights + int64_t(valid ? column0 + r : 0) * a.n_in + k + c,
                   valid);
      }
    }
    commit_copies();
  };
  float acc[kRowTiles][kColumnTiles][4] = {};
  const int warp_row = warp / 4 * (BM / 2), warp_column = warp % 4 * (BN / 4);
  for (int s = 0; s < kStages - 1; ++s) load(s);
  for (int step = 0; step < n_steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();
    load(step + kStages - 1);
    const int stage = step % kStages;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t x[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        load_tiles(x[i], &shared.x[stage][warp_row + i * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
      for (int j = 0; j < kColumnTiles; j += 2) {
        uint32_t w[4];
        load_tiles(w, &shared.w[stage][warp_column + j * 8 + lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 8]);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          multiply(acc[i][j], x[i], w[0], w[1]);
          multiply(acc[i][j + 1], x[i], w[2], w[3]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
      const int r = row0 + warp_row + i * 16 + lane / 4, c = column0 + warp_column + j * 8 + lane % 4 * 2;
      store(a, r, c, acc[i][j][0], acc[i][j][1]);
      store(a, r + 8, c, acc[i][j][2], acc[i][j][3]);
    }
}

template <int BM, int BN>
void run(const Launch& how, const GemmArgs& args) {
  constexpr size_t kBytes = sizeof(Shared<BM, BN>);
  launch(how, dim3(unsigned((args.n_rows + BM - 1) / BM), unsigned((args.parts[0].n_out + BN - 1) / BN)),
         dim3(kThreads), kBytes, gemm_kernel<BM, BN>, args);
}

// Weights in f16, rows as they are.
void gemm_portable(const Launch& how, const GemmArgs& args) {
  const auto blocks = [&](int bm, int bn) {
    return ((args.n_rows + bm - 1) / bm) * ((args.parts[0].n_out + bn - 1) / bn);
  };
  if (blocks(128, 128) >= 132)
    run<128, 128>(how, args);
  else if (blocks(128, 64) >= 100)
    run<128, 64>(how, args);
  else
    run<64, 64>(how, args);
}

// One matrix that is read as it is, or in slices that are expanded first.
void one_matrix(const std::function<Launch()>& next, const GemmArgs& args) {
  const auto multiply = [&](const GemmArgs& a) {
    gemm_by_groups(a.n_in, a.portable) ? gemm_groups(next(), a) : gemm_portable(next(), a);
  };
  const GemmPart& whole = args.parts[0];
  if (!gemm_expands(whole.w, args.portable)) return multiply(args);
  const int slice = std::max(128, int(args.expanded_values / size_t(args.n_in)) / 128 * 128);
  for (int c = 0; c < whole.n_out; c += slice) {
    GemmArgs some = args;
    GemmPart& part = some.parts[0];
    part.n_out = std::min(slice, whole.n_out - c);
    expand_half(next(), whole.w, whole.first_row + c, part.n_out, args.expanded);
    part.w = {WeightForm::kF16, args.n_in, part.n_out, reinterpret_cast<const uint8_t*>(args.expanded)};
    part.first_row = 0;
    part.out += c;
    if (part.mul) part.mul += c;
    if (part.residual) part.residual += c;
    multiply(some);
  }
}

}  // namespace

bool gemm_expands(const MatrixView& w, bool portable) {
  return w.form != WeightForm::kF16 && !(gemm_by_groups(w.n_in, portable) && groups_read(w.form));
}

void gemm(const std::function<Launch()>& next, const GemmArgs& args) {
  bool at_once = gemm_by_groups(args.n_in, args.portable);
  for (int i = 0; i < args.n_parts; ++i) at_once = at_once && !gemm_expands(args.parts[i].w, args.portable);
  if (at_once) return gemm_groups(next(), args);
  for (int i = 0; i < args.n_parts; ++i) {
    GemmArgs one = args;
    GemmPart& part = one.parts[0];
    part = args.parts[i];
    one.n_parts = 1;
    if (part.w2.form != WeightForm::kNone) {  // the gate, then the other matrix times it
      part.w2 = {};
      one_matrix(next, one);
      part.w = args.parts[i].w2;
      part.mul = part.out;
      part.mul_stride = part.out_stride;
      part.gelu = false;
    }
    one_matrix(next, one);
  }
}

}  // namespace kvasir::cuda
