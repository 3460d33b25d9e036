// Perplexity by the convention of llama.cpp's llama-perplexity: BOS + text tokenised once, cut into windows
// of n_ctx tokens, the remainder dropped, the first token of each window replaced by BOS, the second half of
// each window scored.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "engine/session.h"

namespace kvasir::engine {

struct PerplexityResult {
  double ppl = 0;        // exp of the mean negative log-likelihood
  double ppl_err = 0;    // its standard error
  int64_t n_tokens = 0;  // scored
  int n_chunks = 0;
};

struct PerplexityOptions {
  int n_ctx = 2048;
  int max_chunks = -1;
  bool score_all = false;  // score every prediction of a window, not only the second half
  // Called after each window with the running result.
  std::function<void(const PerplexityResult&)> on_chunk;
  // Called for each scored prediction: window, index in window, log-probability of the true next token.
  std::function<void(int window, int index, double logprob)> on_token;
};

// Throws Error{kUsage} when the text has fewer than two tokens a window or fewer tokens than one window.
PerplexityResult perplexity(Session& session, std::span<const Token> tokens,
                            const PerplexityOptions& options);

// Windows of n_ctx tokens that are scored; at most max_chunks when that is positive. Throws as perplexity()
// does.
int perplexity_windows(const Session& session, std::span<const Token> tokens, int n_ctx, int max_chunks);

// The running mean of log-probabilities as a perplexity.
class PerplexityMean {
 public:
  void add(double logprob) {
    sum_ -= logprob;
    sum_squares_ += logprob * logprob;
    ++n_;
  }
  PerplexityResult result(int n_chunks) const;

 private:
  double sum_ = 0, sum_squares_ = 0;
  int64_t n_ = 0;
};

// log softmax(logits)[id]; absolute error below 1e-6 (a test compares it with double precision).
double log_probability(std::span<const float> logits, Token id);

}  // namespace kvasir::engine
