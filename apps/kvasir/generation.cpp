#include "generation.h"

#include "base/error.h"
#include "formats/format.h"
#include "machine.h"

namespace kvasir::app {

namespace {

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

// The first generated token comes from the prompt's logits; only the later ones took a step. A shift hides
// how many did.
double read_gb_per_s(const engine::Session& session, const engine::GenerateResult& result) {
  const int grown = session.size() - result.n_prompt;
  const int steps = grown >= 0 && grown <= result.n_generated ? grown : std::max(result.n_generated - 1, 0);
  if (steps == 0 || result.generate_seconds <= 0) return 0;
  const int before = std::max(session.size() - steps, 0);
  return step_read_bytes(session, before, steps) * steps / result.generate_seconds / 1e9;
}

}  // namespace

std::vector<Flag> generation_flags() {
  constexpr std::string_view kGroup = "Generation";
  return {
      {.names = "-n, --predict",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "-1",
       .group = kGroup,
       .help = "tokens to generate; -1: until the model ends or the context is full",
       .min = -1,
       .max = 16777216,
       .hint = "-1 means until the model stops"},
      {.names = "--ignore-eos", .group = kGroup, .help = "go on after an end-of-turn token"},
      {.names = "--context-shift",
       .group = kGroup,
       .help = "when the context is full drop the older half and go on"},
      {.names = "--keep",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "0",
       .group = kGroup,
       .help = "first tokens that a context shift keeps",
       .min = 0,
       .max = 16777216},
  };
}

engine::GenerateOptions generate_options(const Args& args) {
  engine::GenerateOptions options;
  options.n_predict = args.integer("predict");
  options.sampler = sampler_options(args);
  options.ignore_end = args.on("ignore-eos");
  options.context_shift = args.on("context-shift");
  options.n_keep = args.integer("keep");
  if (options.context_shift && options.n_predict < 0 && options.ignore_end)
    fail(ErrorCode::kUsage, "--ignore-eos with --context-shift never ends; give -n as well");
  return options;
}

void require_prompt_fits(const engine::Session& session, size_t n_prompt) {
  const int n_ctx = session.options().n_ctx, trained = session.model().config().n_ctx_train;
  if (n_prompt <= size_t(n_ctx)) return;
  const std::string remedy = size_t(trained) >= n_prompt
                                 ? fmt::format("give -c {} or shorten the prompt", n_prompt + 256)
                                 : fmt::format("this model was trained for {}; shorten the prompt", trained);
  fail(ErrorCode::kRefused,
       "the prompt has {} tokens but the context holds {}: required {}, supported {}, missing {}; {}",
       n_prompt, n_ctx, n_prompt, n_ctx, n_prompt - size_t(n_ctx), remedy);
}

namespace {

std::vector<engine::Token> with_bos(const text::Tokenizer& tokenizer, std::vector<engine::Token> tokens) {
  if (tokenizer.add_bos() && (tokens.empty() || tokens.front() != tokenizer.bos()))
    tokens.insert(tokens.begin(), tokenizer.bos());
  return tokens;
}

}  // namespace

std::vector<engine::Token> prompt_tokens(const engine::Model& model, std::string_view text) {
  return with_bos(model.tokenizer(), model.tokenizer().encode(text, true));
}

std::vector<engine::Token> chat_tokens(const engine::Model& model, const std::vector<text::Message>& messages,
                                       const text::ChatOptions& options) {
  return with_bos(model.tokenizer(),
                  text::encode_chat(model.tokenizer(), model.chat_family(), messages, options));
}

void AnswerPrinter::show(const std::vector<text::ChannelParser::Piece>& pieces) {
  for (const auto& piece : pieces) {
    (piece.thought ? thought_ : answer_) += piece.text;
    if (silent_ || (piece.thought && !out_is_terminal())) continue;
    print(piece.thought && out_has_color() ? "\033[2m" + piece.text + "\033[0m" : piece.text);
  }
  if (!silent_) flush_out();
}

std::string timing_text(const engine::Session& session, const engine::GenerateResult& result) {
  const int computed = result.n_prompt - result.n_reused;
  const std::string reused = result.n_reused > 0 ? fmt::format(", {} more reused", result.n_reused) : "";
  return fmt::format(
      "prompt    {:>6} tokens {:>8.2f} s {:>9.1f} tokens/s{}\n"
      "generated {:>6} tokens {:>8.2f} s {:>9.1f} tokens/s, {:.1f} GB/s read\n"
      "stopped   {}\n",
      computed, result.prompt_seconds, rate(computed, result.prompt_seconds), reused, result.n_generated,
      result.generate_seconds, rate(result.n_generated, result.generate_seconds),
      read_gb_per_s(session, result), engine::stop_reason_name(result.reason));
}

nlohmann::ordered_json timing_json(const engine::Session& session, const engine::GenerateResult& result) {
  const engine::KvTypes& kv = session.options().kv;
  const int computed = result.n_prompt - result.n_reused;
  return {{"n_prompt", result.n_prompt},
          {"n_reused", result.n_reused},
          {"prompt_seconds", result.prompt_seconds},
          {"prompt_tps", rate(computed, result.prompt_seconds)},
          {"n_generated", result.n_generated},
          {"generate_seconds", result.generate_seconds},
          {"generate_tps", rate(result.n_generated, result.generate_seconds)},
          {"gb_per_s", read_gb_per_s(session, result)},
          {"stop", engine::stop_reason_name(result.reason)},
          {"k_type", formats::require(kv.k).name},
          {"v_type", formats::require(kv.v).name},
          {"n_ctx", session.options().n_ctx},
          {"threads", session.model().n_threads()}};
}

void note_chat_template(const engine::Model& model) {
  if (!model.chat_note().empty()) note(std::string_view(model.chat_note()));
}

}  // namespace kvasir::app
