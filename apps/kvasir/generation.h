// What `run` and `chat` share: options of a generation, its timings as text and as JSON.
#pragma once
#include <nlohmann/json.hpp>

#include "engine/generate.h"
#include "options.h"

namespace kvasir::app {

std::vector<Flag> generation_flags();  // -n --ignore-eos --context-shift --keep
engine::GenerateOptions generate_options(const Args& args);
// Throws Error{kRefused} with both figures when the prompt does not fit the context.
void require_prompt_fits(const engine::Session& session, size_t n_prompt);
// Tokens of a prompt with BOS in front when the model wants it.
std::vector<engine::Token> prompt_tokens(const engine::Model& model, std::string_view text);
// The same for a conversation; control tokens come from the template only, never from what a message says.
std::vector<engine::Token> chat_tokens(const engine::Model& model, const std::vector<text::Message>& messages,
                                       const text::ChatOptions& options);

// Writes what a chat model says as it streams. Thoughts are dimmed on a terminal and left out of piped
// output.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(bool silent) : silent_(silent) {}
  void push(std::string_view piece) { show(parser_.push(piece)); }
  void finish() { show(parser_.finish()); }
  const std::string& answer() const { return answer_; }
  const std::string& thought() const { return thought_; }

 private:
  void show(const std::vector<text::ChannelParser::Piece>& pieces);
  bool silent_;
  text::ChannelParser parser_;
  std::string answer_, thought_;
};

// Lines for stderr.
std::string timing_text(const engine::Session& session, const engine::GenerateResult& result);
nlohmann::ordered_json timing_json(const engine::Session& session, const engine::GenerateResult& result);
// What there is to say of the model's chat template, for commands that use it.
void note_chat_template(const engine::Model& model);

}  // namespace kvasir::app
