// Chat prompts of Gemma 3 and Gemma 4, and reading what the model answers.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::text {

enum class ChatFamily { kGemma3, kGemma4 };

struct Message {
  std::string role;  // "system", "user", "assistant" (alias "model")
  std::string content;
};

struct ChatOptions {
  bool thinking = false;               // Gemma 4: ask for a thought channel
  bool empty_thought_when_off = false; // Gemma 4 files whose own template appends an empty thought channel
  bool add_generation_prompt = true;
};

// Renders the conversation, WITHOUT the BOS token (the caller adds it as an id). Gemma 3 puts a system message before the
// first user turn; thought channels of past assistant turns are stripped. Throws Error{kUsage} on roles that do not
// alternate or are unknown.
std::string render_chat(ChatFamily family, const std::vector<Message>& messages, const ChatOptions& options);

// Reads the family and options from the template text a file carries; falls back to `fallback` with a note in `note`.
ChatFamily detect_family(std::string_view template_text, ChatFamily fallback, ChatOptions& options, std::string& note);

// Splits generated text into thought and answer as it streams; tolerates empty, repeated and stray channel marks.
class ChannelParser {
 public:
  struct Piece {
    bool thought = false;
    std::string text;
  };
  std::vector<Piece> push(std::string_view text);
  std::vector<Piece> finish();

 private:
  std::string pending_;
  bool in_thought_ = false;
};

}  // namespace kvasir::text
