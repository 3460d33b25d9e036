// Prompt in, text out, with timings.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "engine/sampler.h"
#include "engine/session.h"

namespace kvasir::engine {

enum class StopReason { kEnd, kLimit, kContextFull, kCancelled };
std::string_view stop_reason_name(StopReason reason);  // "end of turn", "token limit", "context full", "cancelled"

struct GenerateOptions {
  int n_predict = -1;  // -1: until a stop
  SamplerOptions sampler;
  bool ignore_end = false;  // do not stop at end-of-turn ids
  bool context_shift = false;  // when full: keep `n_keep`, drop half of the rest
  int n_keep = 0;
  std::function<void()> on_prompt;  // the session holds the whole prompt and nothing after it
  const std::atomic<bool>* cancel = nullptr;  // checked between tokens and between micro-batches
};

struct GenerateResult {
  StopReason reason = StopReason::kEnd;
  int n_prompt = 0;      // tokens of the prompt
  int n_reused = 0;      // of them already in the cache
  int n_generated = 0;
  double prompt_seconds = 0;
  double generate_seconds = 0;
  std::vector<Token> tokens;  // generated, end token excluded
};

// `on_text` gets whole UTF-8 characters; returning false cancels.
GenerateResult generate(Session& session, int seq, std::span<const Token> prompt, const GenerateOptions& options,
                        const std::function<bool(std::string_view text)>& on_text);

}  // namespace kvasir::engine
