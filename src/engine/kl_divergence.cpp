#include "engine/kl_divergence.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/fast_exp.h"
#include "formats/format.h"
#include "graph/kv_layout.h"

namespace kvasir::engine {
namespace {

// Rows of reference logits held at a time: a wide vocabulary must not cost n_ctx * n_vocab floats.
constexpr int kRowsAtATime = 32;

size_t top_of(std::span<const float> logits) {
  return size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class Distances {
 public:
  void add(std::span<const float> p, std::span<const float> q) {
    values_.push_back(kl_of_logits(p, q));
    same_top_ += top_of(p) == top_of(q);
  }
  KlSummary summary() {
    KlSummary out;
    if (values_.empty()) return out;
    std::sort(values_.begin(), values_.end());
    const size_t n = values_.size();
    for (double value : values_) out.mean += value / double(n);
    out.median = n % 2 ? values_[n / 2] : 0.5 * (values_[n / 2 - 1] + values_[n / 2]);
    out.p999 = values_[std::min(n - 1, size_t(std::ceil(0.999 * double(n))) - 1)];
    out.same_top = double(same_top_) / double(n);
    return out;
  }

 private:
  std::vector<double> values_;
  int64_t same_top_ = 0;
};

}  // namespace

double kl_of_logits(std::span<const float> p, std::span<const float> q) {
  constexpr size_t kBlock = 256;  // floats summed before the double accumulators take over
  float top_p = p[0], top_q = q[0];
  for (float x : p) top_p = std::max(top_p, x);
  for (float x : q) top_q = std::max(top_q, x);
  double sum_p = 0, sum_q = 0, cross = 0;  // cross: sum e^(p - top_p) ((p - top_p) - (q - top_q))
  for (size_t begin = 0; begin < p.size(); begin += kBlock) {
    const size_t end = std::min(p.size(), begin + kBlock);
    float lanes_p[8] = {}, lanes_q[8] = {}, lanes_c[8] = {};
    const auto add = [&](size_t i, size_t lane) {
      const float a = p[i] - top_p, b = q[i] - top_q, e = fast_exp(a);
      lanes_p[lane] += e;
      lanes_q[lane] += fast_exp(b);
      lanes_c[lane] += e * (a - b);
    };
    size_t i = begin;
    for (; i + 8 <= end; i += 8)
      for (size_t j = 0; j < 8; ++j) add(i + j, j);
    for (; i < end; ++i) add(i, 0);
    for (size_t j = 0; j < 8; ++j) sum_p += lanes_p[j], sum_q += lanes_q[j], cross += lanes_c[j];
  }
  return std::max(0.0, cross / sum_p - std::log(sum_p / sum_q));
}

double exact_share(const graph::Graph& graph, std::span<const graph::KvSpec> specs, int begin, int end) {
  double exact = 0, all = 0;
  for (const graph::Op& op : graph.ops) {
    if (op.kind != graph::OpKind::attention) continue;
    const graph::KvSpec& spec = specs[size_t(op.kv)];
    for (int pos = begin; pos < end; ++pos) {
      const int first = spec.window > 0 ? std::max(0, pos - spec.window + 1) : 0,
                query = pos / graph::kPageTokens;
      int as_written = 0;
      for (int page = first / graph::kPageTokens; page <= query; ++page)
        if (graph::reads_exact(spec, query, page))
          as_written +=
              std::min(pos + 1, (page + 1) * graph::kPageTokens) - std::max(first, page * graph::kPageTokens);
      for (DType type : {spec.k_type, spec.v_type}) {
        exact += formats::require(type).open_page() ? as_written : pos + 1 - first;
        all += pos + 1 - first;
      }
    }
  }
  return all > 0 ? exact / all : 1;
}

KlResult kl_divergence(Session& tested, Session& reference, Session& floor, std::span<const Token> tokens,
                       const KlOptions& options) {
  const int n_ctx = options.n_ctx, n_chunks = perplexity_windows(tested, tokens, n_ctx, options.max_chunks);
  const int first_scored = options.score_all ? 0 : n_ctx / 2;
  KlResult result;
  result.exact_share = exact_share(tested.model().graph(), tested.cache_specs(), first_scored, n_ctx - 1);
  PerplexityMean mean;
  Distances of_tested, of_floor;
  std::vector<float> rows;
  std::vector<Token> window;
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    window.assign(tokens.begin() + long(chunk) * n_ctx, tokens.begin() + long(chunk + 1) * n_ctx);
    window[0] = tested.model().tokenizer().bos();
    const std::span<const Token> all(window);
    for (Session* s : {&tested, &reference, &floor}) {
      s->clear(0);
      if (first_scored > 0) s->append(0, all.first(size_t(first_scored)), Want::kNone, nullptr);
    }
    // The last token of a window has no successor to score.
    for (int begin = first_scored; begin < n_ctx - 1; begin += kRowsAtATime) {
      const int n = std::min(kRowsAtATime, n_ctx - 1 - begin);
      const std::span<const Token> part = all.subspan(size_t(begin), size_t(n));
      size_t n_vocab = 0;
      reference.append(0, part, Want::kAll, [&](int i, std::span<const float> logits) {
        n_vocab = logits.size();
        rows.resize(size_t(kRowsAtATime) * n_vocab);
        std::copy(logits.begin(), logits.end(), rows.begin() + long(size_t(i) * n_vocab));
      });
      const auto row = [&](int i) {
        return std::span<const float>(rows).subspan(size_t(i) * n_vocab, n_vocab);
      };
      floor.append(0, part, Want::kAll,
                   [&](int i, std::span<const float> logits) { of_floor.add(row(i), logits); });
      const int step = options.decode ? 1 : n;
      for (int at = 0; at < n; at += step)
        tested.append(0, part.subspan(size_t(at), size_t(step)), Want::kAll,
                      [&](int i, std::span<const float> logits) {
                        of_tested.add(row(at + i), logits);
                        mean.add(log_probability(logits, window[size_t(begin + at + i) + 1]));
                      });
    }
    result.ppl = mean.result(chunk + 1);
    result.kl = of_tested.summary();
    result.noise_floor = of_floor.summary();
    if (options.on_chunk) options.on_chunk(result);
  }
  return result;
}

}  // namespace kvasir::engine
