#include "engine/perplexity.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/fast_exp.h"

namespace kvasir::engine {

double log_probability(std::span<const float> logits, Token id) {
  constexpr size_t kBlock = 256;  // floats summed before the double accumulator takes over
  const size_t n = logits.size();
  float top = logits[0];
  for (size_t i = 1; i < n; ++i) top = logits[i] > top ? logits[i] : top;
  double sum = 0;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t end = std::min(n, begin + kBlock);
    float lanes[8] = {};
    size_t i = begin;
    for (; i + 8 <= end; i += 8)
      for (size_t j = 0; j < 8; ++j) lanes[j] += fast_exp(logits[i + j] - top);
    for (; i < end; ++i) lanes[0] += fast_exp(logits[i] - top);
    for (float lane : lanes) sum += lane;
  }
  return double(logits[size_t(id)]) - top - std::log(sum);
}

int perplexity_windows(const Session& session, std::span<const Token> tokens, int n_ctx, int max_chunks) {
  if (n_ctx < 4 || n_ctx > session.options().n_ctx)
    fail(ErrorCode::kUsage, "window size (-c) is {}; it must be between 4 and the session's {}", n_ctx,
         session.options().n_ctx);
  const int n_chunks = int(tokens.size()) / n_ctx;
  if (n_chunks == 0)
    fail(ErrorCode::kUsage,
         "the text has {} tokens; one window of {} does not fit (use a smaller -c or a longer text)",
         tokens.size(), n_ctx);
  return max_chunks > 0 ? std::min(n_chunks, max_chunks) : n_chunks;
}

PerplexityResult PerplexityMean::result(int n_chunks) const {
  PerplexityResult out;
  const double n = double(n_), mean = sum_ / n;
  out.n_chunks = n_chunks;
  out.n_tokens = n_;
  out.ppl = std::exp(mean);
  out.ppl_err = n > 1 ? out.ppl * std::sqrt(std::max(0.0, sum_squares_ / n - mean * mean) / (n - 1)) : 0;
  return out;
}

PerplexityResult perplexity(Session& session, std::span<const Token> tokens,
                            const PerplexityOptions& options) {
  const int n_ctx = options.n_ctx, n_chunks = perplexity_windows(session, tokens, n_ctx, options.max_chunks);
  const int first_scored = options.score_all ? 0 : n_ctx / 2;
  PerplexityResult result;
  PerplexityMean mean;
  std::vector<Token> window;
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    window.assign(tokens.begin() + long(chunk) * n_ctx, tokens.begin() + long(chunk + 1) * n_ctx);
    window[0] = session.model().tokenizer().bos();
    session.clear(0);
    const auto score = [&](int i, std::span<const float> logits) {
      const int at = first_scored + i;
      if (at + 1 >= n_ctx) return;
      const double logprob = log_probability(logits, window[size_t(at) + 1]);
      mean.add(logprob);
      if (options.on_token) options.on_token(chunk, at, logprob);
    };
    const std::span<const Token> all(window);
    if (first_scored > 0) session.append(0, all.first(size_t(first_scored)), Want::kNone, nullptr);
    session.append(0, all.subspan(size_t(first_scored)), Want::kAll, score);
    result = mean.result(chunk + 1);
    if (options.on_chunk) options.on_chunk(result);
  }
  return result;
}

}  // namespace kvasir::engine
