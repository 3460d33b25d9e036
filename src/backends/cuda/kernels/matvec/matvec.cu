#include <algorithm>

#include "backends/cuda/kernels/matvec/matvec.h"
#include "backends/cuda/kernels/matvec/small_units.cuh"
#include "backends/cuda/kernels/weights/weights.h"

namespace kvasir::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kDeviceWarps = 132 * 16;  // enough loads in flight to fill the memory pipe

struct Kernel {
  MatvecArgs a;
  int split;          // warps that share one pair of rows
  int first_pair[4];  // of each part
};

// A pair of matrix rows a warp (or `split` warps): rows 2p and 2p + 1, or row p of both matrices of a gated
// pair.
template <WeightForm F, int NR>
__global__ void __launch_bounds__(kWarps * 32) matvec_kernel(const __grid_constant__ Kernel k) {
  __shared__ float shared[kWarps][2 * NR];
  let_next_start();
  constexpr int kUnroll = NR == 1 ? 4 : NR <= 4 ? 2 : 1;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int pair_all = int(blockIdx.x) * (kWarps / k.split) + warp / k.split, part_warp = warp % k.split;
  int p = 0;
  while (p + 1 < k.a.n_parts && pair_all >= k.first_pair[p + 1]) ++p;
  const MatvecPart& part = k.a.parts[p];
  const int pair = pair_all - k.first_pair[p];
  const bool gated = part.w2.form != WeightForm::kNone;
  const int row0 = gated ? pair : 2 * pair;
  const bool has0 = row0 < part.n_out, has1 = gated ? has0 : row0 + 1 < part.n_out;
  const MatrixView& w0 = part.w;
  const MatrixView& w1 = gated ? part.w2 : part.w;
  const int64_t at0 = part.first_row + (has0 ? row0 : 0),
                at1 = part.first_row + (has1 ? (gated ? row0 : row0 + 1) : 0);

  const InputView input{k.a.x, k.a.quant, k.a.n_in};
  float acc[2][NR];
#pragma unroll
  for (int r = 0; r < NR; ++r) acc[0][r] = acc[1][r] = 0;
  const int n_units = k.a.n_in / Unit<F>::kValues, stride = 32 * k.split;
  bool first = true;
  for (int base = part_warp * 32; base < n_units || first; base += stride * kUnroll) {
    Unit<F> u0[kUnroll], u1[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int unit = base + i * stride + lane;
      u0[i].load(w0, at0, unit, unit < n_units);
      u1[i].load(w1, at1, unit, unit < n_units);
    }
    if (first) wait_for_inputs();  // weights need no waiting: they are on their way by now
    first = false;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int unit = min(base + i * stride + lane, n_units - 1);
      u0[i].unpack(unit);
      u1[i].unpack(unit);
#pragma unroll
      for (int r = 0; r < NR; ++r) {
        if (NR > 1 && r >= k.a.n_rows) break;
        const UnitInput<F> x(input, r, unit);
        acc[0][r] = u0[i].dot(x, acc[0][r]);
        acc[1][r] = u1[i].dot(x, acc[1][r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < NR; ++r) {
    if (NR > 1 && r >= k.a.n_rows) break;
    acc[0][r] = warp_sum(acc[0][r]);
    acc[1][r] = warp_sum(acc[1][r]);
    if (lane == 0) {
      shared[warp][2 * r] = acc[0][r];
      shared[warp][2 * r + 1] = acc[1][r];
    }
  }
  if (k.split > 1)
    __syncthreads();
  else
    __syncwarp();
  if (part_warp != 0 || lane >= k.a.n_rows) return;
  float y0 = 0, y1 = 0;
  for (int s = 0; s < k.split; ++s) {
    y0 += shared[warp + s][2 * lane];
    y1 += shared[warp + s][2 * lane + 1];
  }
  if (gated) {
    if (has0) store_product(part, lane, row0, y0, y1);
    return;
  }
  if (has0) store_product(part, lane, row0, y0, 0);
  if (has1) store_product(part, lane, row0 + 1, y1, 0);
}

template <WeightForm F>
void run(const Launch& how, Kernel& k, int n_pairs) {
  const int n_units = k.a.n_in / Unit<F>::kValues;
  k.split = 1;
  while (k.split < kWarps && n_pairs * k.split < kDeviceWarps && 32 * 2 * k.split <= n_units) k.split *= 2;
  const int per_block = kWarps / k.split;
  const dim3 grid(unsigned((n_pairs + per_block - 1) / per_block)), block(kWarps * 32);
  if (k.a.n_rows == 1)
    launch(how, grid, block, 0, matvec_kernel<F, 1>, k);
  else if (k.a.n_rows <= 4)
    launch(how, grid, block, 0, matvec_kernel<F, 4>, k);
  else
    launch(how, grid, block, 0, matvec_kernel<F, kMaxMatvecRows>, k);
}

}  // namespace

void matvec(const Launch& how, const MatvecArgs& args) {
  Kernel k{args, 1, {0, 0, 0, 0}};
  int n_pairs = 0;
  for (int p = 0; p < args.n_parts; ++p) {
    k.first_pair[p] = n_pairs;
    const MatvecPart& part = args.parts[p];
    n_pairs += part.w2.form != WeightForm::kNone ? part.n_out : (part.n_out + 1) / 2;
  }
  switch (args.parts[0].w.form) {
    case WeightForm::kF32:
      return run<WeightForm::kF32>(how, k, n_pairs);
    case WeightForm::kF16:
      return run<WeightForm::kF16>(how, k, n_pairs);
    case WeightForm::kBf16:
      return run<WeightForm::kBf16>(how, k, n_pairs);
    case WeightForm::kQ8:
      return run<WeightForm::kQ8>(how, k, n_pairs);
    case WeightForm::kQ4:
      return run<WeightForm::kQ4>(how, k, n_pairs);
    case WeightForm::kQ4M:
      return run<WeightForm::kQ4M>(how, k, n_pairs);
    case WeightForm::kQ5:
      return run<WeightForm::kQ5>(how, k, n_pairs);
    case WeightForm::kQ5M:
      return run<WeightForm::kQ5M>(how, k, n_pairs);
    case WeightForm::kQ4K:
      return run<WeightForm::kQ4K>(how, k, n_pairs);
    case WeightForm::kQ5K:
      return run<WeightForm::kQ5K>(how, k, n_pairs);
    case WeightForm::kQ6K:
      return run<WeightForm::kQ6K>(how, k, n_pairs);
    case WeightForm::kQ2K:
      return run<WeightForm::kQ2K>(how, k, n_pairs);
    case WeightForm::kQ3K:
      return run<WeightForm::kQ3K>(how, k, n_pairs);
    case WeightForm::kIq4Nl:
      return run<WeightForm::kIq4Nl>(how, k, n_pairs);
    case WeightForm::kIq4Xs:
      return run<WeightForm::kIq4Xs>(how, k, n_pairs);
    case WeightForm::kNone:
      break;
  }
  refuse_form("a few rows", args.parts[0].w.form);
}

}  // namespace kvasir::cuda
