#include "engine/perplexity.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace kvasir::engine {

double log_probability(std::span<const float> logits, Token id) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(double(logit) - top);
  return double(logits[size_t(id)]) - top - std::log(sum);
}

PerplexityResult perplexity(Session& session, std::span<const Token> tokens, const PerplexityOptions& options) {
  const int n_ctx = options.n_ctx;
  if (n_ctx < 4 || n_ctx > session.options().n_ctx)
    fail(ErrorCode::kUsage, "window size (-c) is {}; it must be between 4 and the session's {}", n_ctx,
         session.options().n_ctx);
  int n_chunks = int(tokens.size()) / n_ctx;
  if (n_chunks == 0)
    fail(ErrorCode::kUsage, "the text has {} tokens; one window of {} does not fit (use a smaller -c or a longer text)",
         tokens.size(), n_ctx);
  if (options.max_chunks > 0) n_chunks = std::min(n_chunks, options.max_chunks);
  const int first_scored = options.score_all ? 0 : n_ctx / 2;
  PerplexityResult result;
  double sum = 0, sum_squares = 0;
  std::vector<Token> window;
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    window.assign(tokens.begin() + long(chunk) * n_ctx, tokens.begin() + long(chunk + 1) * n_ctx);
    window[0] = session.model().tokenizer().bos();
    session.clear(0);
    const auto score = [&](int base) {
      return [&, base](int i, std::span<const float> logits) {
        const int at = base + i;
        if (at + 1 >= n_ctx) return;
        const double logprob = log_probability(logits, window[size_t(at) + 1]);
        sum -= logprob;
        sum_squares += logprob * logprob;
        ++result.n_tokens;
        if (options.on_token) options.on_token(chunk, at, logprob);
      };
    };
    const std::span<const Token> all(window);
    if (first_scored > 0) session.append(0, all.first(size_t(first_scored)), Want::kNone, nullptr);
    session.append(0, all.subspan(size_t(first_scored)), Want::kAll, score(first_scored));
    result.n_chunks = chunk + 1;
    const double n = double(result.n_tokens), mean = sum / n;
    result.ppl = std::exp(mean);
    result.ppl_err = n > 1 ? result.ppl * std::sqrt(std::max(0.0, sum_squares / n - mean * mean) / (n - 1)) : 0;
    if (options.on_chunk) options.on_chunk(result);
  }
  return result;
}

}  // namespace kvasir::engine
