// What a KV cache type costs: the KL divergence of a session's predictions from those of the same model with
// an f16 cache.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "engine/perplexity.h"

namespace kvasir::engine {

// Over the scored positions; divergences in nats.
struct KlSummary {
  double mean = 0, median = 0, p999 = 0;
  double same_top = 0;  // share of positions whose likeliest token is the same
};

struct KlResult {
  PerplexityResult ppl;    // of the tested session
  KlSummary kl;            // KL(f16 || tested)
  KlSummary noise_floor;   // KL(f16 || f32): what rounding of an exact cache amounts to
  double exact_share = 0;  // of the keys and values that the scored positions read, how many as written
  // Whether the mean stands out of the noise: at least twice its floor.
  bool resolved() const { return kl.mean >= 2 * noise_floor.mean; }
};

struct KlOptions {
  int n_ctx = 2048;
  int max_chunks = -1;
  bool score_all = false;
  bool decode = false;  // the tested session takes the scored tokens one at a time: the kernels of generation
  std::function<void(const KlResult&)> on_chunk;
};

// Windows and scoring of perplexity(). The sessions are of the same model, `reference` with an f16 and
// `floor` with an f32 cache, each with room for n_ctx. Throws as perplexity() does.
KlResult kl_divergence(Session& tested, Session& reference, Session& floor, std::span<const Token> tokens,
                       const KlOptions& options);

// sum p (log p - log q) of the softmaxes of two rows of logits, never below 0; absolute error below 1e-6.
double kl_of_logits(std::span<const float> p, std::span<const float> q);

// Share of the keys and values read by queries at positions [begin, end) that are exact, over all attention
// ops of `graph` with `specs` as its caches.
double exact_share(const graph::Graph& graph, std::span<const graph::KvSpec> specs, int begin, int end);

}  // namespace kvasir::engine
