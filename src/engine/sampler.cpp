#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"

namespace kvasir::engine {

using text::Token;

namespace {

// Number `i` of splitmix64's sequence: the same on every platform, unlike the distributions of <random>.
uint64_t random_number(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

constexpr size_t kBlock = 256;  // logits whose greatest is found at a time

// The greatest of `n` (a multiple of 16 but for the end), in lanes that compilers keep in vectors.
float greatest(const float* x, size_t n) {
  constexpr size_t kLanes = 16;
  float lane[kLanes];
  std::fill_n(lane, kLanes, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
  for (; i < n; ++i) lane[0] = std::max(lane[0], x[i]);
  return *std::max_element(lane, lane + kLanes);
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  const auto need = [](bool ok, const char* flag, double value, const char* rule) {
    if (!ok) fail(ErrorCode::kUsage, "{} is {}; it must be {}", flag, value, rule);
  };
  need(options.temperature >= 0 && std::isfinite(options.temperature), "--temp", options.temperature,
       "0 (greedy) or more");
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
  if (options_.temperature == 0) return greedy(logits);
  candidates_.clear();
  if (options_.top_k == 0 || size_t(options_.top_k) >= logits.size()) {
    for (size_t i = 0; i < logits.size(); ++i) candidates_.push_back({logits[i], Token(i)});
    return draw_of_all();
  }
  take_likely(logits, size_t(options_.top_k));
  if (candidates_.empty()) return 0;  // none is a number
  const size_t k = std::min(size_t(options_.top_k), candidates_.size());
  sort_best(k);
  candidates_.resize(k);
  return draw();
}

// First of equals: the lower id.
Token Sampler::greedy(std::span<const float> logits) {
  find_block_bests(logits);
  const size_t block = size_t(std::ranges::max_element(block_best_) - block_best_.begin());
  const auto begin = logits.begin() + long(block * kBlock);
  const auto at = std::find(begin, logits.end(), block_best_[block]);
  return at == logits.end() ? 0 : Token(at - logits.begin());  // none is a number
}

void Sampler::find_block_bests(std::span<const float> logits) {
  block_best_.clear();
  for (size_t i = 0; i < logits.size(); i += kBlock)
    block_best_.push_back(greatest(logits.data() + i, std::min(kBlock, logits.size() - i)));
}

// The k-th greatest of the blocks' greatest bounds the k-th greatest logit from below: most blocks have none
// above it.
void Sampler::take_likely(std::span<const float> logits, size_t k) {
  find_block_bests(logits);
  float bound = -std::numeric_limits<float>::infinity();
  if (block_best_.size() > k) {
    sorted_ = block_best_;
    std::nth_element(sorted_.begin(), sorted_.begin() + long(k) - 1, sorted_.end(), std::greater<>());
    bound = sorted_[k - 1];
  }
  for (size_t block = 0; block < block_best_.size(); ++block) {
    if (block_best_[block] < bound) continue;
    const size_t end = std::min((block + 1) * kBlock, logits.size());
    for (size_t i = block * kBlock; i < end; ++i)
      if (logits[i] >= bound) candidates_.push_back({logits[i], Token(i)});
  }
}

void Sampler::sort_best(size_t k) {
  std::partial_sort(candidates_.begin(), candidates_.begin() + long(k), candidates_.end(),
                    [](const auto& a, const auto& b) {
                      return a.first > b.first || (a.first == b.first && a.second < b.second);
                    });
}

// A whole vocabulary is sorted only as far as the nucleus goes, and not at all where every token may be
// drawn.
Token Sampler::draw_of_all() {
  const size_t n = candidates_.size();
  const graph::Choice how = choice();
  const float best = std::max_element(candidates_.begin(), candidates_.end())->first;
  const auto weight = [&](double temperature) {
    return [this, best, temperature](int i) {
      return graph::choice_weight(candidates_[size_t(i)].first, best, temperature);
    };
  };
  size_t kept = n;
  if (options_.top_p < 1 || options_.min_p > 0) {
    double total = 0;
    for (size_t i = 0; i < n; ++i) total += weight(1)(int(i));
    for (size_t sorted = std::min<size_t>(n, 256);; sorted = std::min(n, 16 * sorted)) {
      sort_best(sorted);
      kept = size_t(graph::nucleus_size(how, int(sorted), total, weight(1)));
      if (kept < sorted || sorted == n) break;
    }
  }
  advance();
  return candidates_[size_t(graph::draw_one(how, int(kept), weight(how.temperature)))].second;
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

graph::Choice Sampler::choice(int ahead) const {
  if (options_.temperature == 0) return {};
  return {options_.top_k, options_.temperature, options_.top_p, options_.min_p,
          random_number(options_.seed, n_drawn_ + uint64_t(ahead))};
}

void Sampler::advance() { n_drawn_ += options_.temperature != 0; }

Token Sampler::draw() {
  const float best = candidates_[0].first;
  own_.clear();
  for (const auto& [logit, token] : candidates_) own_.push_back(graph::choice_weight(logit, best, 1));
  const graph::Choice how = choice();
  advance();
  const int taken = graph::choose_candidate(
      how, int(candidates_.size()), [&](int i) { return own_[size_t(i)]; },
      [&](int i) { return graph::choice_weight(candidates_[size_t(i)].first, best, how.temperature); });
  return candidates_[size_t(taken)].second;
}

}  // namespace kvasir::engine
