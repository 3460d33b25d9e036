#include "engine/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace kvasir::engine {

namespace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

bool cancelled(const GenerateOptions& options) { return options.cancel && options.cancel->load(); }

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kEnd: return "end of turn";
    case StopReason::kLimit: return "token limit";
    case StopReason::kContextFull: return "context full";
    case StopReason::kCancelled: return "cancelled";
  }
  return "unknown";
}

GenerateResult generate(Session& session, int seq, std::span<const Token> prompt, const GenerateOptions& options,
                        const std::function<bool(std::string_view text)>& on_text) {
  if (prompt.empty()) fail(ErrorCode::kUsage, "the prompt is empty; give at least one token");
  const int n_ctx = session.options().n_ctx;
  if (int(prompt.size()) > n_ctx)
    fail(ErrorCode::kRefused, "the prompt has {} tokens; the context holds {} (raise -c or shorten the prompt)",
         prompt.size(), n_ctx);
  const text::Tokenizer& tokenizer = session.model().tokenizer();
  Sampler sampler(options.sampler);
  text::StreamDecoder decoder(tokenizer);
  GenerateResult result;
  result.n_prompt = int(prompt.size());
  std::string note;
  result.n_reused = session.reuse_prefix(seq, prompt, &note);
  if (!note.empty()) session.model().log().info("{}", note);
  for (Token token : prompt) sampler.accept(token);

  Token next = -1;
  const Session::OnLogits pick = [&](int, std::span<const float> logits) { next = sampler.sample(logits); };
  // Where the device chooses the candidates only they come back, not every logit.
  const int n_best = sampler.candidates();
  const auto append_last = [&](std::span<const Token> tokens) {
    if (n_best == 0) return session.append(seq, tokens, Want::kLast, pick);
    session.append_best(
        seq, tokens, n_best, [&](std::span<const backends::Candidate> best) { next = sampler.sample(best); }, pick);
  };
  Stopwatch prompt_watch;
  const std::span<const Token> rest = prompt.subspan(size_t(result.n_reused));
  // One micro-batch at a time, so that a cancel is heard.
  const size_t step = size_t(session.options().n_ubatch);
  for (size_t begin = 0; begin < rest.size() && !cancelled(options); begin += step) {
    const bool last = begin + step >= rest.size();
    const std::span<const Token> part = rest.subspan(begin, std::min(step, rest.size() - begin));
    if (last)
      append_last(part);
    else
      session.append(seq, part, Want::kNone, nullptr);
  }
  result.prompt_seconds = prompt_watch.seconds();
  if (next < 0) {
    result.reason = StopReason::kCancelled;
    return result;
  }
  if (options.on_prompt) options.on_prompt();

  Stopwatch watch;
  // Takes `next` into the text; false when nothing is to follow it.
  const auto take = [&] {
    const auto stop = [&](StopReason reason) {
      result.reason = reason;
      return false;
    };
    const auto limit = [&] { return options.n_predict >= 0 && result.n_generated >= options.n_predict; };
    if (cancelled(options)) return stop(StopReason::kCancelled);
    if (limit()) return stop(StopReason::kLimit);
    if (!options.ignore_end && tokenizer.is_end(next)) return stop(StopReason::kEnd);
    ++result.n_generated;
    result.tokens.push_back(next);
    sampler.accept(next);
    const std::string piece = decoder.push(next);
    if (!piece.empty() && !on_text(piece)) return stop(StopReason::kCancelled);
    return limit() ? stop(StopReason::kLimit) : true;
  };
  for (bool more = take(); more;) {
    if (session.size(seq) >= n_ctx) {
      if (!options.context_shift) {
        result.reason = StopReason::kContextFull;
        break;
      }
      session.shift(seq, options.n_keep, std::max(1, (session.size(seq) - options.n_keep) / 2));
    }
    const Token token = next;
    if (n_best > 0) {
      session.append_chosen(seq, token, n_ctx - session.size(seq), sampler, [&](Token chosen) {
        next = chosen;
        return more = take();
      });
    } else {
      append_last({&token, 1});
      more = take();
    }
  }
  const std::string tail = decoder.finish();
  if (!tail.empty()) on_text(tail);
  result.generate_seconds = watch.seconds();
  return result;
}

}  // namespace kvasir::engine
