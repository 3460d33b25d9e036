// Matrices times many rows (prompts): y = act(scale[row] * w . x) * mul + residual, x and w in f16, sums in
// f32, on the matrix units. Bound: 2 * n_in * n_out * rows flops.
#pragma once
#include "backends/cuda/kernels/args.h"

namespace kvasir::cuda {

struct GemmArgs {
  const uint16_t* x = nullptr;      // [n_rows][n_in] f16
  const float* x_scale = nullptr;   // [n_rows]
  const uint16_t* w = nullptr;      // [n_out][n_in] f16
  float* out = nullptr;             // [n_rows][out_stride]
  const float* mul = nullptr;       // [n_rows][mul_stride], or null
  const float* residual = nullptr;  // [n_rows][out_stride], or null
  int n_rows = 0, n_in = 0, n_out = 0, out_stride = 0, mul_stride = 0;
  bool gelu = false;
  float softcap = 0;
};
// n_in must be a multiple of 32, n_out of 2.
void gemm(const Launch& how, const GemmArgs& args);

}  // namespace kvasir::cuda
