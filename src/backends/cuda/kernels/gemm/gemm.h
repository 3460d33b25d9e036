// Matrices times many rows (prompts): y = act(scale[row] * w . x) * mul + residual, x and w in f16, sums in
// f32, on the matrix units. Bound: 2 * n_in * n_out * rows flops.
#pragma once
#include <functional>

#include "backends/cuda/kernels/args.h"

namespace kvasir::cuda {

// One matrix of a product, or a gated pair.
struct GemmPart {
  MatrixView w, w2;                 // with w2: y = act(scale[row] * w . x) * (scale[row] * w2 . x)
  int first_row = 0;                // rows of them from here on
  float* out = nullptr;             // [n_rows][out_stride]
  const float* mul = nullptr;       // [n_rows][mul_stride], or null
  const float* residual = nullptr;  // [n_rows][out_stride], or null
  int n_out = 0, out_stride = 0, mul_stride = 0;
  bool gelu = false;
  float softcap = 0;
};
// How the product by warp groups is shared out, 0: as its costs say. rows: of a tile (64, 128, 256); steps:
// of the depth of tiles, end to end, that each cluster of blocks takes.
struct GemmPlan {
  int rows = 0, steps = 0;
};
struct GemmArgs {
  const uint16_t* x = nullptr;     // as gemm_rows() leaves them
  const float* x_scale = nullptr;  // [n_rows]
  GemmPart parts[3];               // of the same rows
  int n_parts = 1;
  int n_rows = 0, n_in = 0;
  bool portable = false;         // none of what only sm_90 has
  uint16_t* expanded = nullptr;  // f16 weights of types that the kernel does not read as they are
  size_t expanded_values = 0;
  uint8_t* shares = nullptr;  // gemm_share_bytes(), zeros before the first call
  GemmPlan plan;
};
// By warp groups (sm_90a), or the portable way.
bool gemm_by_groups(int n_in, bool portable);
// Weights that it reads as f16, expanded before.
bool gemm_expands(const MatrixView& w, bool portable);
// Room for sums that several blocks make together.
size_t gemm_share_bytes();
// Rows of f16 that a product of up to n_rows rows takes room for.
constexpr int padded_gemm_rows(int n_rows) {
  return n_rows <= 64 ? 64 : n_rows <= 128 ? 128 : (n_rows + 255) / 256 * 256;
}
// x[n_rows][n] to f16: x = scale[row] * y, the largest |y| of a row is 1024.
void gemm_rows(const Launch& how, const float* x, int n, int n_rows, bool portable, uint16_t* y,
               float* scale);
// n_in must be a multiple of 32, n_out of 2. `next` is asked for each launch.
void gemm(const std::function<Launch()>& next, const GemmArgs& args);

}  // namespace kvasir::cuda
