#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace kvasir::engine {

using text::Token;

namespace {

// splitmix64: the same sequence on every platform, unlike the distributions of <random>.
uint64_t next_random(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), state_(options.seed) {
  const auto need = [](bool ok, const char* flag, double value, const char* rule) {
    if (!ok) fail(ErrorCode::kUsage, "{} is {}; it must be {}", flag, value, rule);
  };
  need(options.temperature >= 0 && std::isfinite(options.temperature), "--temp", options.temperature, "0 (greedy) or more");
  need(options.top_k >= 0, "--top-k", options.top_k, "0 (off) or more");
  need(options.top_p > 0 && options.top_p <= 1, "--top-p", options.top_p, "above 0 and at most 1 (off)");
  need(options.min_p >= 0 && options.min_p < 1, "--min-p", options.min_p, "at least 0 (off) and below 1");
  need(options.repeat_penalty > 0, "--repeat-penalty", options.repeat_penalty, "above 0 (1: off)");
  need(options.repeat_last_n >= 0, "--repeat-last-n", options.repeat_last_n, "0 or more");
}

void Sampler::accept(Token token) {
  recent_.push_back(token);
  while (recent_.size() > size_t(options_.repeat_last_n)) recent_.pop_front();
}

Token Sampler::sample(std::span<const float> logits) {
  std::vector<float> penalised;
  if (options_.repeat_penalty != 1 && !recent_.empty()) {
    penalised.assign(logits.begin(), logits.end());
    std::vector<Token> seen(recent_.begin(), recent_.end());
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (Token token : seen) {
      float& logit = penalised[size_t(token)];
      logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
    }
    logits = penalised;
  }
  if (options_.temperature == 0)
    return Token(std::max_element(logits.begin(), logits.end()) - logits.begin());  // first of equals: the lower id

  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) candidates_.push_back({logits[i], Token(i)});
  const auto better = [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  };
  const size_t k = options_.top_k > 0 ? std::min(size_t(options_.top_k), candidates_.size()) : candidates_.size();
  std::partial_sort(candidates_.begin(), candidates_.begin() + long(k), candidates_.end(), better);
  candidates_.resize(k);
  return draw();
}

int Sampler::candidates() const {
  if (options_.repeat_penalty != 1) return 0;
  if (options_.temperature == 0) return 1;
  return options_.top_k <= backends::kMaxCandidates ? options_.top_k : 0;
}

Token Sampler::sample(std::span<const backends::Candidate> best) {
  if (options_.temperature == 0) return best.front().token;
  candidates_.clear();
  for (const backends::Candidate& one : best) candidates_.push_back({one.logit, one.token});
  return draw();
}

Token Sampler::draw() {
  const size_t k = candidates_.size();
  // Nucleus and min-p look at the model's own distribution; temperature flattens or sharpens what is left.
  std::vector<double> p(k);
  double total = 0;
  for (size_t i = 0; i < k; ++i) total += p[i] = std::exp(double(candidates_[i].first) - candidates_[0].first);
  size_t n = 0;
  for (double sum = 0; n < k; ++n) {
    if (n > 0 && (sum >= options_.top_p * total || p[n] < options_.min_p * p[0])) break;
    sum += p[n];
  }
  total = 0;
  for (size_t i = 0; i < n; ++i)
    total += p[i] = std::exp((double(candidates_[i].first) - candidates_[0].first) / options_.temperature);
  double target = double(next_random(state_) >> 11) * 0x1p-53 * total;
  for (size_t i = 0; i < n; ++i) {
    target -= p[i];
    if (target < 0) return candidates_[i].second;
  }
  return candidates_[n - 1].second;
}

}  // namespace kvasir::engine
