// Choosing the next token. Deterministic: the same logits, settings and seed give the same tokens on every
// machine.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "graph/choice.h"
#include "text/tokenizer.h"

namespace kvasir::engine {

struct SamplerOptions {
  float temperature = 0;     // 0: greedy
  int top_k = 64;            // 0: off
  float top_p = 0.95f;       // 1: off
  float min_p = 0;           // 0: off
  float repeat_penalty = 1;  // 1: off
  int repeat_last_n = 64;
  uint64_t seed = 0;
};

class Sampler {
 public:
  // Throws Error{kUsage} for values out of range, naming the flag.
  explicit Sampler(const SamplerOptions& options);
  // Greedy ties go to the lower id.
  text::Token sample(std::span<const float> logits);
  // How many of the best candidates decide; 0: every logit is needed (the repeat penalty, or no --top-k
  // within backends::kMaxCandidates).
  int candidates() const;
  // The same choice as sample(logits) from the best candidates(), best first and the lower id first among
  // equals.
  text::Token sample(std::span<const backends::Candidate> best);
  // What sample() does `ahead` calls from now, for a device to do (candidates() > 0); advance() when it has.
  graph::Choice choice(int ahead = 0) const;
  void advance();
  // Records a token for the repeat penalty (sample() does not).
  void accept(text::Token token);

 private:
  text::Token draw();         // from candidates_, best first
  text::Token draw_of_all();  // from candidates_, in any order
  void sort_best(size_t k);   // the best k of candidates_ come first, in order
  text::Token greedy(std::span<const float> logits);
  void find_block_bests(std::span<const float> logits);
  void take_likely(std::span<const float> logits, size_t k);  // candidates_: the best k and few more

  SamplerOptions options_;
  uint64_t n_drawn_ = 0;
  std::deque<text::Token> recent_;
  std::vector<std::pair<float, text::Token>> candidates_;
  std::vector<float> block_best_, sorted_;
  std::vector<double> own_;  // weights of candidates_ at temperature 1
};

}  // namespace kvasir::engine
