// kvasir chat: a conversation in the terminal.
#include <iostream>

#include "base/error.h"
#include "cache_choice.h"
#include "command.h"
#include "generation.h"
#include "text/utf8.h"

namespace kvasir::app {
namespace {

constexpr std::string_view kHelp =
    "/help   this list\n"
    "/clear  forget the conversation\n"
    "/stats  timings of the last answer and how full the context is\n"
    "/exit   leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer. A line ending in \\ goes on in the next.\n";

class Conversation {
 public:
  Conversation(const Args& args, engine::Session& session, std::string warning)
      : args_(args),
        session_(session),
        warning_(std::move(warning)),
        options_(generate_options(args)),
        chat_(session.model().chat_options()) {
    const OnOff reasoning = parse_on_off(args.text("reasoning"), "--reasoning");
    if (reasoning != OnOff::kAuto) chat_.thinking = reasoning == OnOff::kOn;
    if (args.given("system-prompt")) require_utf8(args.text("system-prompt"), "-sys");
    clear();
  }

  // False: leave.
  bool take(const std::string& line) {
    if (line == "/exit" || line == "/quit" || line == "/bye") return false;
    if (line == "/help" || line == "/?")
      print_err(kHelp);
    else if (line == "/clear")
      clear(), print_err("The conversation is forgotten.\n");
    else if (line == "/stats")
      print_err(stats());
    else if (line.starts_with('/'))
      print_err(fmt::format("No command {}; /help lists them.\n", line));
    else if (line.find_first_not_of(" \t\r\n") != line.npos)
      answer(line);
    return true;
  }

 private:
  void clear() {
    messages_.clear();
    if (args_.given("system-prompt")) messages_.push_back({"system", args_.text("system-prompt")});
    session_.clear(0);
  }

  std::string stats() const {
    return fmt::format("{}context   {} of {} positions\n{}", last_, session_.size(), session_.options().n_ctx,
                       warning_.empty() ? "" : warning_ + "\n");
  }

  void answer(const std::string& line) {
    if (const size_t bad = text::find_invalid_utf8(line); bad != std::string::npos) {
      print_err(fmt::format("kvasir: that line is not UTF-8 (byte offset {}); it was not sent\n", bad));
      return;
    }
    messages_.push_back({"user", line});
    const auto tokens = chat_tokens(session_.model(), messages_, chat_);
    if (tokens.size() >= size_t(session_.options().n_ctx)) {
      messages_.pop_back();
      print_err(fmt::format(
          "kvasir: the conversation needs {} positions but the context holds {}; /clear starts afresh, or "
          "start with a larger -c\n",
          tokens.size(), session_.options().n_ctx));
      return;
    }
    speak(tokens);
  }

  void speak(const std::vector<engine::Token>& tokens) {
    AnswerPrinter printer(false);
    Interrupt interrupt;
    options_.cancel = &interrupt.flag();
    const auto result = engine::generate(session_, 0, tokens, options_, [&](std::string_view piece) {
      printer.push(piece);
      return true;
    });
    printer.finish();
    print("\n");
    flush_out();
    last_ = timing_text(session_, result);
    messages_.push_back({"assistant", printer.answer()});
    if (result.reason == engine::StopReason::kContextFull)
      print_err(
          "kvasir: the context is full; /clear starts afresh, or start with --context-shift or a larger "
          "-c\n");
    if (args_.on("stats")) print_err(last_);
    if (!warning_.empty()) note(warning_);
  }

  const Args& args_;
  engine::Session& session_;
  std::string warning_;  // said with every answer and figure
  engine::GenerateOptions options_;
  text::ChatOptions chat_;
  std::vector<text::Message> messages_;
  std::string last_;
};

// Joins lines that end in a backslash. False at the end of input.
bool read_turn(std::string& line) {
  const bool prompt = in_is_terminal() && err_is_terminal();
  if (prompt) print_err(err_has_color() ? "\033[1m> \033[0m" : "> ");
  if (!std::getline(std::cin, line)) return false;
  std::string more;
  while (line.ends_with('\\') && (prompt ? (print_err("| "), true) : true) && std::getline(std::cin, more))
    line.back() = '\n', line += more;
  return true;
}

int chat(const Args& args) {
  require_backend(args);
  kv_types(args);
  engine::SessionOptions options;
  const auto model = load_model(args, options);
  engine::Session session(model, options);
  const SessionEvidence evidence(session, args.on("allow-unverified"));
  evidence.show(loudness(args) == Loudness::kQuiet);
  if (loudness(args) != Loudness::kQuiet) {
    note_chat_template(*model);
    note("{}, context {}", model->description(), session.options().n_ctx);
    if (in_is_terminal()) print_err("Type a message, /help for commands, Ctrl-D to leave.\n");
  }
  Conversation conversation(args, session, evidence.warning());
  std::string line;
  while (read_turn(line) && conversation.take(line)) {
  }
  if (in_is_terminal() && std::cin.eof()) print_err("\n");
  return 0;
}

}  // namespace

Command chat_command() {
  Command command;
  command.name = "chat";
  command.summary = "talk with a model in the terminal";
  command.usage = "[options] -m MODEL";
  command.description =
      "Reads a line, answers, and remembers the conversation; only what is new is computed for each turn. "
      "Thoughts of a "
      "thinking model are dimmed on a terminal and left out of piped output. Commands inside: /help /clear "
      "/stats /exit. "
      "With piped input each line is one turn.";
  command.flags = join(
      {{{.names = "-sys, --system-prompt",
         .argument = "TEXT",
         .kind = Kind::kText,
         .group = "Conversation",
         .help = "what the model is told before the first turn"},
        {.names = "--reasoning",
         .argument = "WHEN",
         .kind = Kind::kOnOff,
         .fallback = "auto",
         .group = "Conversation",
         .help = "ask the model to think before it answers: on, off or auto (as the model file says)"},
        {.names = "--stats", .group = "Conversation", .help = "print the timings after every answer"}},
       model_flags(),
       generation_flags(),
       sampling_flags("1"),
       context_flags(),
       cache_flags(),
       {{.names = "-v, --verbose", .group = "Output", .help = "more lines about what happens"},
        {.names = "-q, --quiet", .group = "Output", .help = "warnings and errors only on standard error"},
        help_flag()}});
  command.examples = {
      {"kvasir chat -m gemma-3-1b-it-Q4_K_M.gguf", "converse; Ctrl-D leaves"},
      {"echo \"Name three rivers.\" | kvasir chat -q -m gemma.gguf -n 100 --temp 0",
       "one question from a script"},
  };
  command.run = chat;
  return command;
}

}  // namespace kvasir::app
