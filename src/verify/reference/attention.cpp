#include "verify/reference/attention.h"

#include <algorithm>
#include <cmath>

#include "base/wide.h"

namespace kvasir::verify::reference {

bool reads_exact(const AttentionSpec& spec, int query_page, int key_page) {
  return query_page == key_page || key_page < spec.exact_first || query_page - key_page <= spec.exact_last;
}

const double* Rows::row(const AttentionSpec& spec, int query_pos, int pos, int kv_head) const {
  const std::vector<double>& from = is_exact(spec, query_pos, pos) ? exact : coded;
  return from.data() + (size_t(pos) * size_t(spec.n_kv) + size_t(kv_head)) * size_t(spec.head_dim);
}

namespace {

// Sum of a_i b_i, and of its terms' magnitudes.
struct Dot {
  double sum = 0, magnitude = 0;
};
KVASIR_WIDE Dot dot_of(const double* a, const double* b, int n) {
  Dot dot;
  double sums[8] = {}, magnitudes[8] = {};
  int i = 0;
  for (; i + 8 <= n; i += 8)
    for (int lane = 0; lane < 8; ++lane) {
      const double product = a[i + lane] * b[i + lane];
      sums[lane] += product;
      magnitudes[lane] += std::fabs(product);
    }
  for (; i < n; ++i) {
    dot.sum += a[i] * b[i];
    dot.magnitude += std::fabs(a[i] * b[i]);
  }
  for (int lane = 0; lane < 8; ++lane) {
    dot.sum += sums[lane];
    dot.magnitude += magnitudes[lane];
  }
  return dot;
}

// One value row's part of an output.
KVASIR_WIDE void mix_row(double weight, const double* v, int d, double* out, double* spread, double* energy) {
  for (int i = 0; i < d; ++i) {
    out[i] += weight * v[i];
    spread[i] += weight * std::fabs(v[i]);
    energy[i] += v[i] * v[i];
  }
}

}  // namespace

Scores score_head(const AttentionSpec& spec, const Rows& keys, std::span<const float> q, int pos, int head,
                  std::span<const double> coded_query) {
  Scores result;
  const int d = spec.head_dim, kv_head = head / (spec.n_head / spec.n_kv);
  result.first = spec.window > 0 ? std::max(0, pos - spec.window + 1) : 0;
  const std::vector<double> given(q.begin() + head * d, q.begin() + (head + 1) * d);
  double top = -HUGE_VAL, sum = 0;
  for (int j = result.first; j <= pos; ++j) {
    const bool coded = !coded_query.empty() && !keys.is_exact(spec, pos, j);
    const Dot dot = dot_of(coded ? coded_query.data() : given.data(), keys.row(spec, pos, j, kv_head), d);
    double score = spec.scale * dot.sum;
    if (spec.softcap > 0) score = spec.softcap * std::tanh(score / spec.softcap);
    result.score.push_back(score);
    result.magnitude.push_back(dot.magnitude * std::fabs(spec.scale));
    top = std::max(top, score);
  }
  for (const double score : result.score) sum += std::exp(score - top);
  for (const double score : result.score) result.weight.push_back(std::exp(score - top) / sum);
  return result;
}

Mixed mix_head(const AttentionSpec& spec, const Scores& scores, const Rows& values, int pos, int head) {
  Mixed result;
  const int d = spec.head_dim;
  result.out.assign(size_t(d), 0);
  result.spread = result.energy = result.out;
  double *out = result.out.data(), *spread = result.spread.data(), *energy = result.energy.data();
  for (int j = scores.first; j <= pos; ++j) {
    const double weight = scores.weight[size_t(j - scores.first)];
    const double* v = values.row(spec, pos, j, head / (spec.n_head / spec.n_kv));
    mix_row(weight, v, d, out, spread, energy);
  }
  return result;
}

void round_weights(const AttentionSpec& spec, const Rows& values, int pos, int head, double codes, double slack,
                   Scores& scores, std::vector<Tie>& ties) {
  constexpr int kTogether = 128;
  const size_t kv_head = size_t(head / (spec.n_head / spec.n_kv));
  const auto scale = [&](int j) {
    return values.is_exact(spec, pos, j) ? 0 : values.scale[size_t(j) * size_t(spec.n_kv) + kv_head];
  };
  for (int begin = scores.first / kTogether * kTogether; begin <= pos; begin += kTogether) {
    const int first = std::max(begin, scores.first), end = std::min(begin + kTogether, pos + 1);
    double top = 0;
    for (int j = first; j < end; ++j) top = std::max(top, scores.weight[size_t(j - scores.first)] * scale(j));
    for (int j = first; j < end && top > 0; ++j) {
      const double row_scale = scale(j);
      if (row_scale == 0) continue;
      double& weight = scores.weight[size_t(j - scores.first)];
      const double code = weight * row_scale * codes / top, step = top / codes / row_scale;
      if (std::fabs(code - std::trunc(code) - 0.5) < slack * code) ties.push_back({j, step});
      weight = std::nearbyint(code) * step;
    }
  }
}

Part part_of(const Scores& head, const AttentionSpec& spec, const Rows& values, int pos, int query_head,
             int begin, int end) {
  Part part;
  part.out.assign(size_t(spec.head_dim), 0);
  part.top = -HUGE_VAL;
  begin = std::max(begin, head.first);
  end = std::min(end, pos + 1);
  for (int j = begin; j < end; ++j) part.top = std::max(part.top, head.score[size_t(j - head.first)]);
  for (int j = begin; j < end; ++j) {
    const double e = std::exp(head.score[size_t(j - head.first)] - part.top);
    const double* v = values.row(spec, pos, j, query_head / (spec.n_head / spec.n_kv));
    part.sum += e;
    for (int i = 0; i < spec.head_dim; ++i) part.out[size_t(i)] += e * v[i];
  }
  return part;
}

Part merge(const Part& a, const Part& b) {
  if (a.sum == 0) return b;
  if (b.sum == 0) return a;
  Part m;
  m.top = std::max(a.top, b.top);
  const double keep_a = std::exp(a.top - m.top), keep_b = std::exp(b.top - m.top);
  m.sum = keep_a * a.sum + keep_b * b.sum;
  for (size_t i = 0; i < a.out.size(); ++i) m.out.push_back(keep_a * a.out[i] + keep_b * b.out[i]);
  return m;
}

}  // namespace kvasir::verify::reference
