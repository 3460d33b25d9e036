// Row-wise ops between the matmuls. All f32; a row's bits depend on that row only.
//   rms_norm:  out = (residual + x / sqrt(mean(x^2) + eps) * w) * scale          (residual, w may be null)
//   rope_head: y = x / sqrt(mean(x^2) + eps) * w, then pairs (i, i + half), i < n_pairs, turned by (cos_i, sin_i)
//   gelu:      x / (1 + exp(-2 * 0.79788456 (x + 0.044715 x^3)))  = the tanh form of GELU
//   softcap:   c * tanh(x / c)
// Sums use 32 strided accumulators, then the tree 16-8-4-2-1. Bound: one read and one write of the row.
#pragma once
#include "base/cpu_features.h"

namespace kvasir::cpu {

struct ElementwiseKernels {
  const char* name;
  void (*rms_norm)(const float* x, const float* w, const float* residual, float scale, float eps, int n, float* out);
  void (*rope_head)(const float* x, const float* w, const float* cos, const float* sin, int n_pairs, int half,
                    int head_dim, float eps, float* out);
  void (*gelu_mul)(const float* x, const float* y, int n, float* out);  // out = gelu(x) * y; y null: gelu(x)
  void (*softcap)(float* x, int n, float cap);
  void (*scale_add)(const float* x, float x_scale, const float* y, float y_scale, int n, float* out);
};

// The fastest set this CPU runs, or a slower one when `isa` asks for it.
const ElementwiseKernels& elementwise_kernels(Isa isa);

}  // namespace kvasir::cpu
