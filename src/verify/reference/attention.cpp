#include "verify/reference/attention.h"

#include <algorithm>
#include <cmath>

namespace kvasir::verify::reference {

bool reads_exact(const AttentionSpec& spec, int query_page, int key_page) {
  return query_page == key_page || key_page < spec.exact_first || query_page - key_page <= spec.exact_last;
}

const double* Rows::row(const AttentionSpec& spec, int query_pos, int pos, int kv_head) const {
  const std::vector<double>& from = is_exact(spec, query_pos, pos) ? exact : coded;
  return from.data() + (size_t(pos) * size_t(spec.n_kv) + size_t(kv_head)) * size_t(spec.head_dim);
}

Head attend(const AttentionSpec& spec, const Rows& keys, const Rows& values, std::span<const float> q,
            int pos, int head, std::span<const double> coded_query) {
  Head result;
  const int d = spec.head_dim, kv_head = head / (spec.n_head / spec.n_kv);
  result.first = spec.window > 0 ? std::max(0, pos - spec.window + 1) : 0;
  const std::vector<double> given(q.begin() + head * d, q.begin() + (head + 1) * d);
  double top = -HUGE_VAL, sum = 0;
  for (int j = result.first; j <= pos; ++j) {
    const double* k = keys.row(spec, pos, j, kv_head);
    const bool coded = !coded_query.empty() && !keys.is_exact(spec, pos, j);
    const double* query = coded ? coded_query.data() : given.data();
    double dot = 0, magnitude = 0;
    for (int i = 0; i < d; ++i) {
      const double product = query[i] * k[i];
      dot += product;
      magnitude += std::fabs(product);
    }
    double score = spec.scale * dot;
    if (spec.softcap > 0) score = spec.softcap * std::tanh(score / spec.softcap);
    result.score.push_back(score);
    result.magnitude.push_back(magnitude * std::fabs(spec.scale));
    top = std::max(top, score);
  }
  for (const double score : result.score) sum += std::exp(score - top);
  result.out.assign(size_t(d), 0);
  result.spread = result.energy = result.out;
  for (int j = result.first; j <= pos; ++j) {
    const double weight = std::exp(result.score[size_t(j - result.first)] - top) / sum;
    result.weight.push_back(weight);
    const double* v = values.row(spec, pos, j, kv_head);
    for (int i = 0; i < d; ++i) {
      result.out[size_t(i)] += weight * v[i];
      result.spread[size_t(i)] += weight * std::fabs(v[i]);
      result.energy[size_t(i)] += v[i] * v[i];
    }
  }
  return result;
}

Part part_of(const Head& head, const AttentionSpec& spec, const Rows& values, int pos, int query_head,
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
