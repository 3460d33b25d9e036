// Row-wise ops between the matmuls; f32 in and out, optionally the int8 groups a matmul reads next.
//   norm:  out = (residual + x / sqrt(mean(x^2) + eps) * w) * scale       (residual, w may be null)
//   then:  second = out / sqrt(mean(out^2) + eps) * w_second              (when second is given)
// Bound: one read and one write of the row.
#pragma once
#include "backends/cuda/kernels/args.h"

namespace kvasir::cuda {

struct NormArgs {
  const float* x = nullptr;         // [n_rows][n]
  const float* w = nullptr;         // [n]
  const float* residual = nullptr;  // [n_rows][n]
  float* out = nullptr;
  const float* w_second = nullptr;
  float* second = nullptr;
  QuantRows quant;  // of the last output; q null: none
  float scale = 1, eps = 0, eps_second = 0;
  int n = 0;
};
void norm_rows(const Launch& how, const NormArgs& args, int n_rows);

void quantize_rows(const Launch& how, const float* x, int n, int n_rows, const QuantRows& out);
// Whether this program has code for the current device.
bool has_code_for_device();
// f16 rows for the matrix units: x = scale[row] * y, the largest |y| of a row is 1024.
void half_rows(const Launch& how, const float* x, int n, int n_rows, uint16_t* y, float* scale);
// out[r] = x[out_rows[r]]
void select_rows(const Launch& how, const float* x, const StepView& step, int n, int n_out, float* out);

// cos and sin of every turning pair at each row's position and at position + shift:
// turns [2 (shifted)][max_rows][2 (cos, sin)][n_pairs].
struct RopeTableArgs {
  const double* frequency = nullptr;  // [n_pairs]
  float* turns = nullptr;
  int n_pairs = 0, max_rows = 0;
};
void fill_rope_table(const Launch& how, const RopeTableArgs& args, const StepView& step, int n_rows);

}  // namespace kvasir::cuda
