// The one body of the row-wise kernels, compiled once an ISA by auto-vectorisation: each elementwise_*.cpp includes it into
// an unnamed namespace, so that no two ISAs share a symbol.
#include <cmath>

#include "base/fast_exp.h"
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

inline float tree_sum(const float* lanes) {
  float t[32];
  for (int i = 0; i < 32; ++i) t[i] = lanes[i];
  for (int width = 16; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) t[i] += t[i + width];
  return t[0];
}

inline float inverse_rms(const float* x, int n, float eps) {
  float lanes[32] = {};
  int i = 0;
  for (; i + 32 <= n; i += 32)
    for (int j = 0; j < 32; ++j) lanes[j] += x[i + j] * x[i + j];
  for (int j = 0; i + j < n; ++j) lanes[j] += x[i + j] * x[i + j];
  return 1.0f / std::sqrt(tree_sum(lanes) / float(n) + eps);
}

inline float gelu_tanh(float x) {
  const float cubic = mutated(Mutation::kGelu) ? 0.0456f : 0.044715f;
  const float u = 0.7978845608f * (x + cubic * x * x * x);
  return x / (1.0f + fast_exp(-2.0f * u));
}

inline void rms_norm(const float* x, const float* w, const float* residual, float scale, float eps, int n, float* out) {
  const float inverse = inverse_rms(x, n, eps);
  if (w && residual) {
    for (int i = 0; i < n; ++i) out[i] = (residual[i] + x[i] * inverse * w[i]) * scale;
  } else if (w) {
    for (int i = 0; i < n; ++i) out[i] = x[i] * inverse * w[i] * scale;
  } else if (residual) {
    for (int i = 0; i < n; ++i) out[i] = (residual[i] + x[i] * inverse) * scale;
  } else {
    for (int i = 0; i < n; ++i) out[i] = x[i] * inverse * scale;
  }
}

inline void rope_head(const float* x, const float* w, const float* cos, const float* sin, int n_pairs, int half,
                      int head_dim, float eps, float* out) {
  rms_norm(x, w, nullptr, 1.0f, eps, head_dim, out);
  for (int i = 0; i < n_pairs; ++i) {
    const float a = out[i], b = out[i + half];
    out[i] = a * cos[i] - b * sin[i];
    out[i + half] = b * cos[i] + a * sin[i];
  }
}

inline void gelu_mul(const float* x, const float* y, int n, float* out) {
  if (y) {
    for (int i = 0; i < n; ++i) out[i] = gelu_tanh(x[i]) * y[i];
  } else {
    for (int i = 0; i < n; ++i) out[i] = gelu_tanh(x[i]);
  }
}

inline void softcap(float* x, int n, float cap) {
  const float inverse = 1.0f / cap;
  for (int i = 0; i < n; ++i) {
    const float e = fast_exp(-2.0f * std::fabs(x[i] * inverse));
    x[i] = std::copysign(cap * ((1.0f - e) / (1.0f + e)), x[i]);
  }
}

inline void scale_add(const float* x, float x_scale, const float* y, float y_scale, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = x[i] * x_scale + y[i] * y_scale;
}

}  // namespace
}  // namespace kvasir::cpu
