#include "text/chat_template.h"

#include "base/error.h"

namespace kvasir::text {
namespace {

constexpr std::string_view kOpen = "<|channel>", kClose = "<channel|>";
constexpr std::string_view kEmptyThought = "<|channel>thought\n<channel|>";

enum class Role { kSystem, kUser, kModel };

Role role_of(const Message& message) {
  if (message.role == "system" || message.role == "developer") return Role::kSystem;
  if (message.role == "user") return Role::kUser;
  if (message.role == "assistant" || message.role == "model") return Role::kModel;
  fail(ErrorCode::kUsage, "unknown role '{}' in the conversation; known: system, user, assistant",
       message.role);
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kWhite = " \t\n\r\f\v";
  const size_t first = text.find_first_not_of(kWhite);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhite) - first + 1);
}

// An optional system message, then user and assistant in turn, the user first.
void check_roles(const std::vector<Message>& messages) {
  size_t first = 0;
  if (!messages.empty() && role_of(messages[0]) == Role::kSystem) first = 1;
  if (first == messages.size()) fail(ErrorCode::kUsage, "the conversation has no user message");
  for (size_t i = first; i < messages.size(); ++i) {
    const Role expected = (i - first) % 2 == 0 ? Role::kUser : Role::kModel;
    if (role_of(messages[i]) == expected) continue;
    fail(ErrorCode::kUsage,
         "message {} of the conversation is from '{}' where '{}' is due; after an optional system message, "
         "user and "
         "assistant must alternate",
         i + 1, messages[i].role, expected == Role::kUser ? "user" : "assistant");
  }
}

class Spans {
 public:
  void mark(std::string_view text) { add(true, text); }
  void content(std::string_view text) { add(false, text); }
  std::vector<ChatSpan> take() { return std::move(spans_); }

 private:
  void add(bool markup, std::string_view text) {
    if (text.empty()) return;
    if (spans_.empty() || spans_.back().markup != markup) spans_.push_back({markup, {}});
    spans_.back().text += text;
  }
  std::vector<ChatSpan> spans_;
};

std::vector<ChatSpan> render_gemma3(const std::vector<Message>& messages, const ChatOptions& options) {
  Spans out;
  std::string before_first;
  for (const Message& message : messages) {
    const Role role = role_of(message);
    if (role == Role::kSystem) {
      before_first = trim(message.content);
      if (!before_first.empty()) before_first += "\n\n";
      continue;
    }
    out.mark(role == Role::kUser ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
    out.content(before_first);
    before_first.clear();
    out.content(role == Role::kModel ? strip_thoughts(message.content) : trim(message.content));
    out.mark("<end_of_turn>\n");
  }
  if (options.add_generation_prompt) out.mark("<start_of_turn>model\n");
  return out.take();
}

std::vector<ChatSpan> render_gemma4(const std::vector<Message>& messages, const ChatOptions& options) {
  Spans out;
  const bool has_system = role_of(messages[0]) == Role::kSystem;
  if (has_system || options.thinking) {
    out.mark("<|turn>system\n");
    if (options.thinking) out.mark("<|think|>\n");
    if (has_system) out.content(trim(messages[0].content));
    out.mark("<turn|>\n");
  }
  for (size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    const bool user = role_of(messages[i]) == Role::kUser;
    out.mark(user ? "<|turn>user\n" : "<|turn>model\n");
    out.content(user ? trim(messages[i].content) : strip_thoughts(messages[i].content));
    out.mark("<turn|>\n");
  }
  if (options.add_generation_prompt) {
    out.mark("<|turn>model\n");
    if (!options.thinking && options.empty_thought_when_off) out.mark(kEmptyThought);
  }
  return out.take();
}

}  // namespace

std::string strip_thoughts(std::string_view text) {
  // What an opening mark starts ends at the next closing mark or with the text; a closing mark alone means
  // nothing.
  std::string out;
  while (!text.empty()) {
    const size_t close = text.find(kClose);
    const std::string_view part = text.substr(0, close);
    out += part.substr(0, part.find(kOpen));
    text.remove_prefix(close == std::string_view::npos ? text.size() : close + kClose.size());
  }
  return std::string(trim(out));
}

std::vector<ChatSpan> render_chat_spans(ChatFamily family, const std::vector<Message>& messages,
                                        const ChatOptions& options) {
  check_roles(messages);
  return family == ChatFamily::kGemma3 ? render_gemma3(messages, options) : render_gemma4(messages, options);
}

std::string render_chat(ChatFamily family, const std::vector<Message>& messages, const ChatOptions& options) {
  std::string text;
  for (const ChatSpan& span : render_chat_spans(family, messages, options)) text += span.text;
  return text;
}

std::vector<Token> encode_chat(const Tokenizer& tokenizer, ChatFamily family,
                               const std::vector<Message>& messages, const ChatOptions& options) {
  std::vector<Token> ids;
  for (const ChatSpan& span : render_chat_spans(family, messages, options)) {
    const std::vector<Token> part = tokenizer.encode(span.text, span.markup);
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

ChatFamily detect_family(std::string_view template_text, ChatFamily fallback, ChatOptions& options,
                         std::string& note) {
  const auto has = [&](std::string_view part) { return template_text.find(part) != std::string_view::npos; };
  const char* fallback_name = fallback == ChatFamily::kGemma3 ? "Gemma 3" : "Gemma 4";
  note.clear();
  if (has("<|turn>")) {
    // In the template's source the newline of the empty channel is written either way.
    options.empty_thought_when_off = has(kEmptyThought) || has("<|channel>thought\\n<channel|>");
    if (options.thinking && !has("<|think|>"))
      note = "the file's chat template has no thinking mode; it was asked for all the same";
    return ChatFamily::kGemma4;
  }
  options.empty_thought_when_off = false;
  if (has("<start_of_turn>")) {
    if (options.thinking) note = "Gemma 3 has no thinking mode; the option has no effect";
    return ChatFamily::kGemma3;
  }
  note = template_text.empty()
             ? fmt::format("the file has no chat template; using that of {}", fallback_name)
             : fmt::format("the file's chat template is not one of Gemma's; using that of {}", fallback_name);
  return fallback;
}

}  // namespace kvasir::text
