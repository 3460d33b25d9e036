#include "models/key_balance.h"

#include <algorithm>
#include <cmath>

namespace kvasir::models {
namespace {

// A turn of 1e-15 rad a position stays under f32's rounding at every context.
constexpr float kStandsStill = 1e15f;
constexpr double kMost = 16;
constexpr double kWorthIt = 1.05;  // smaller gains leave a model's norms as they are

double energy(std::span<const float> w) {
  double sum = 0;
  for (const float x : w) sum += double(x) * x;
  return sum;
}

// A channel without queries should cost nothing, one without keys has room.
double scale(double k, double q, double middle) {
  if (k == 0 && q == 0) return 1;
  if (q == 0) return kMost;
  return std::clamp(std::pow(k / q, 0.25) / middle, 1 / kMost, kMost);
}

}  // namespace

std::vector<float> key_balance(std::span<const float> k_norm, std::span<const std::vector<float>> q_norms,
                               const graph::RopeSpec& rope) {
  const size_t n = k_norm.size(), half = size_t(rope.n_rot) / 2;
  std::vector<double> k(n), q(n);
  for (size_t i = 0; i < n; ++i) k[i] = double(k_norm[i]) * k_norm[i];
  for (const std::vector<float>& w : q_norms) {
    const double total = energy(w);  // every layer's scores count alike
    for (size_t i = 0; i < n; ++i) q[i] += double(w[i]) * w[i] / total;
  }
  for (size_t i = 0; i < half; ++i) {
    if (!rope.freq_factors.empty() && rope.freq_factors[i] >= kStandsStill) continue;
    k[i] = k[i + half] = (k[i] + k[i + half]) / 2;
    q[i] = q[i + half] = (q[i] + q[i + half]) / 2;
  }
  std::vector<float> out(n, 1.0f);
  double mean = 0, counted = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(k[i]) || !std::isfinite(q[i])) return out;
    if (k[i] == 0 || q[i] == 0) continue;
    mean += std::log(k[i] / q[i]) / 4;
    ++counted;
  }
  if (counted == 0) return out;
  const double middle = std::exp(mean / counted);
  std::vector<double> s(n);
  double keys = 0, queries = 0, balanced_keys = 0, balanced_queries = 0;
  for (size_t i = 0; i < n; ++i) {
    s[i] = scale(k[i], q[i], middle);
    keys += k[i];
    queries += q[i];
    balanced_keys += k[i] / (s[i] * s[i]);
    balanced_queries += q[i] * s[i] * s[i];
  }
  if (!(keys * queries >= kWorthIt * balanced_keys * balanced_queries)) return out;
  std::copy(s.begin(), s.end(), out.begin());
  return out;
}

}  // namespace kvasir::models
