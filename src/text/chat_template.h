// Chat prompts of Gemma 3 and Gemma 4, and reading what the model answers.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace kvasir::text {

enum class ChatFamily { kGemma3, kGemma4 };

struct Message {
  std::string role;  // "system" (alias "developer"), "user", "assistant" (alias "model")
  std::string content;
};

struct ChatOptions {
  bool thinking = false;                // Gemma 4: ask for a thought channel
  bool empty_thought_when_off = false;  // Gemma 4 files whose own template appends an empty thought channel
  bool add_generation_prompt = true;
};

// A stretch of a rendered conversation: the template's own marks, or what somebody wrote.
struct ChatSpan {
  bool markup = false;
  std::string text;
};

// Renders the conversation, WITHOUT the BOS token (the caller adds it as an id). Contents are trimmed. Gemma
// 3 puts a system message before the first user turn; thought channels of past assistant turns are stripped.
// Throws Error{kUsage} on roles that do not alternate or are unknown, and when there is no message but a
// system message.
std::vector<ChatSpan> render_chat_spans(ChatFamily family, const std::vector<Message>& messages,
                                        const ChatOptions& options);
std::string render_chat(ChatFamily family, const std::vector<Message>& messages, const ChatOptions& options);

// The ids of the rendered conversation, without BOS. Only the template's own marks become control tokens: a
// message that contains "<end_of_turn>" cannot end its turn. Same errors, and those of Tokenizer::encode.
std::vector<Token> encode_chat(const Tokenizer& tokenizer, ChatFamily family,
                               const std::vector<Message>& messages, const ChatOptions& options);

// An assistant's text without its thought channels, trimmed.
std::string strip_thoughts(std::string_view text);

// Reads the family and options from the template text a file carries; falls back to `fallback` with a note in
// `note` (empty when there is nothing to say).
ChatFamily detect_family(std::string_view template_text, ChatFamily fallback, ChatOptions& options,
                         std::string& note);

// Splits generated text into thought and answer as it streams; tolerates empty, repeated and stray channel
// marks. Marks, the channel's name line and the newlines that end a thought are not part of any piece; no
// piece is empty. Text is held back only while it may be the start of a mark.
class ChannelParser {
 public:
  struct Piece {
    bool thought = false;
    std::string text;
  };
  std::vector<Piece> push(std::string_view text);
  std::vector<Piece> finish();

 private:
  std::vector<Piece> drain(bool last);
  bool skip_name(bool last);

  std::string pending_;
  bool in_thought_ = false;
  bool name_due_ = false;  // right after an opening mark
};

}  // namespace kvasir::text
