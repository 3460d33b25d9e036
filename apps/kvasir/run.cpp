// kvasir run: text from a prompt.
#include "base/error.h"
#include "cache_choice.h"
#include "command.h"
#include "generation.h"
#include "prompt_cache.h"

namespace kvasir::app {
namespace {

std::vector<engine::Token> tokens_of(const Args& args, const std::string& prompt,
                                     const engine::Model& model) {
  if (!args.on("chat")) return prompt_tokens(model, prompt);
  std::vector<text::Message> messages;
  if (args.given("system-prompt")) messages.push_back({"system", args.text("system-prompt")});
  messages.push_back({"user", prompt});
  return chat_tokens(model, messages, model.chat_options());
}

// Everything that can be wrong without a model is said before one is loaded.
std::string checked_prompt(const Args& args, const PromptCache& cache) {
  if (args.given("system-prompt") && !args.on("chat"))
    fail(ErrorCode::kUsage, "-sys needs --chat: a raw prompt has no system part");
  if (args.given("system-prompt")) require_utf8(args.text("system-prompt"), "-sys");
  require_backend(args);
  kv_types(args);
  generate_options(args);
  if (cache.there() && !args.given("prompt") && !args.given("file")) {
    if (args.on("chat")) fail(ErrorCode::kUsage, "--chat needs a message; give -p or -f");
    return "";
  }
  return prompt_text(args);
}

engine::GenerateResult stream(const Args& args, engine::Session& session,
                              const std::vector<engine::Token>& tokens,
                              const engine::GenerateOptions& options, AnswerPrinter& chat, std::string& raw) {
  const bool json = args.on("json"), in_chat = args.on("chat");
  const auto result = engine::generate(session, 0, tokens, options, [&](std::string_view piece) {
    if (in_chat) {
      chat.push(piece);
    } else {
      raw += piece;
      if (!json) print(piece), flush_out();
    }
    return true;
  });
  if (in_chat) chat.finish();
  return result;
}

int run(const Args& args) {
  PromptCache cache(args);
  const std::string prompt = checked_prompt(args, cache);
  const bool json = args.on("json"), quiet = loudness(args) == Loudness::kQuiet;
  engine::SessionOptions cache_options;
  const auto model = load_model(args, cache_options);
  if (args.on("chat") && !quiet) note_chat_template(*model);
  auto tokens = tokens_of(args, prompt, *model);
  cache.choose_types(args, *model, cache_options, quiet);
  engine::Session session(model, cache_options);
  cache.load(session, quiet);
  if (!args.given("prompt") && !args.given("file"))
    tokens.assign(session.tokens().begin(), session.tokens().end());
  if (tokens.empty())
    fail(ErrorCode::kUsage,
         "the prompt is empty, and this model starts no text with a BOS token; give some text");
  require_prompt_fits(session, tokens.size());
  const SessionEvidence evidence(session, args.on("allow-unverified"));
  evidence.show(quiet);

  engine::GenerateOptions options = generate_options(args);
  if (options.sampler.temperature > 0 && !quiet) note("seed {}", options.sampler.seed);
  Interrupt interrupt;
  options.cancel = &interrupt.flag();
  cache.watch(session, tokens, options, quiet);
  AnswerPrinter chat(json);
  std::string raw;
  const auto result = stream(args, session, tokens, options, chat, raw);
  if (json) {
    nlohmann::ordered_json document = {{"model", model->description()},
                                       {"path", model->path()},
                                       {"text", args.on("chat") ? chat.answer() : raw},
                                       {"seed", options.sampler.seed}};
    if (args.on("chat")) document["thought"] = chat.thought();
    document.update(timing_json(session, result));
    document.update(evidence.json());
    print(document.dump(2) + "\n");
  } else {
    print("\n");
  }
  flush_out();
  if (!quiet) print_err("\n" + timing_text(session, result));
  cache.finish(session, result);
  if (!evidence.warning().empty()) note(evidence.warning());
  return 0;
}

}  // namespace

Command run_command() {
  Command command;
  command.name = "run";
  command.summary = "generate text from a prompt";
  command.usage = "[options] -m MODEL -p PROMPT";
  command.description =
      "Continues the prompt and writes the text to standard output as it is made; what was loaded and how "
      "fast it went go to "
      "standard error. Ctrl-C ends the text early and still prints the timings. With the default temperature "
      "0 the same "
      "prompt always gives the same text.";
  command.flags = join({prompt_flags(),
                        prompt_cache_flags(),
                        {{.names = "--chat",
                          .group = "Prompt",
                          .help = "put the prompt into the model's chat template as one user turn"},
                         {.names = "-sys, --system-prompt",
                          .argument = "TEXT",
                          .kind = Kind::kText,
                          .group = "Prompt",
                          .help = "system message for --chat"}},
                        model_flags(),
                        generation_flags(),
                        sampling_flags("0"),
                        context_flags(),
                        cache_flags(),
                        output_flags()});
  command.examples = {
      {"kvasir run -p \"It was a cold morning\" -n 64", "continue a sentence with the built-in test model"},
      {"kvasir run -m gemma.gguf --chat -p \"Why is the sky blue?\"", "ask a chat model one question"},
      {"kvasir run -m gemma.gguf -f notes.txt -c 32768 -ctk q8_0 -ctv q8_0 -n 200",
       "a long prompt from a file"},
      {"kvasir run -m gemma.gguf -f notes.txt --prompt-cache notes.state -n 200",
       "the same, and the next run starts where this prompt ended"},
  };
  command.run = run;
  return command;
}

}  // namespace kvasir::app
