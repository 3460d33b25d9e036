// kvasir perplexity: how well a model predicts a text.
#include "engine/perplexity.h"

#include <chrono>

#include "base/error.h"
#include "command.h"
#include "formats/format.h"
#include "generation.h"

namespace kvasir::app {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int perplexity(const Args& args) {
  if (!args.given("file")) fail(ErrorCode::kUsage, "no text; give -f FILE, or -f - to read standard input");
  require_backend(args);
  kv_types(args);
  const std::string text = read_text(args.text("file"));
  require_utf8(text, args.text("file"));
  const auto model = load_model(args);
  std::vector<engine::Token> tokens = model->tokenizer().encode(text, false);
  if (model->tokenizer().add_bos()) tokens.insert(tokens.begin(), model->tokenizer().bos());
  engine::SessionOptions session_opts = session_options(args, *model);
  engine::Session session(model, session_opts);

  engine::PerplexityOptions options;
  options.n_ctx = session.options().n_ctx;
  options.max_chunks = args.integer("chunks");
  options.score_all = args.on("all");
  const int windows = int(tokens.size() / size_t(options.n_ctx));
  if (windows == 0)
    fail(ErrorCode::kUsage, "{}: {} tokens are fewer than one window of {}; give -c {} or a longer text",
         args.text("file"), tokens.size(), options.n_ctx, std::max<size_t>(tokens.size() / 2, 2));
  const int total = options.max_chunks > 0 ? std::min(options.max_chunks, windows) : windows;
  const bool quiet = loudness(args) == Loudness::kQuiet;
  if (!quiet) {
    note_load_lines(session);
    note("{} tokens, {} windows of {}", tokens.size(), total, options.n_ctx);
  }
  const auto start = std::chrono::steady_clock::now();
  options.on_chunk = [&](const engine::PerplexityResult& now) {
    if (quiet) return;
    const double left = seconds_since(start) / now.n_chunks * (total - now.n_chunks);
    const std::string line = fmt::format("window {:>4} of {}  perplexity {:.4f} +- {:.4f}  {:.0f} s left",
                                         now.n_chunks, total, now.ppl, now.ppl_err, left);
    print_err(err_is_terminal() ? "\r" + line + "\033[K" : line + "\n");
  };
  const auto result = engine::perplexity(session, tokens, options);
  if (!quiet && err_is_terminal()) print_err("\n");
  const double seconds = seconds_since(start);
  if (args.on("json")) {
    const engine::KvTypes& kv = session.options().kv;
    const nlohmann::ordered_json document = {{"ppl", result.ppl},
                                             {"ppl_err", result.ppl_err},
                                             {"n_tokens", result.n_tokens},
                                             {"n_ctx", options.n_ctx},
                                             {"k_type", formats::require(kv.k).name},
                                             {"v_type", formats::require(kv.v).name},
                                             {"n_chunks", result.n_chunks},
                                             {"model", model->description()},
                                             {"flash_attn", session.options().flash_attention},
                                             {"threads", model->n_threads()},
                                             {"seconds", seconds}};
    print(document.dump(2) + "\n");
  } else {
    print(fmt::format("perplexity {:.4f} +- {:.4f} over {} tokens in {} windows of {} ({:.1f} s)\n",
                      result.ppl, result.ppl_err, result.n_tokens, result.n_chunks, options.n_ctx, seconds));
  }
  flush_out();
  return 0;
}

}  // namespace

Command perplexity_command() {
  Command command;
  command.name = "perplexity";
  command.summary = "how well a model predicts a text";
  command.usage = "[options] -m MODEL -f TEXT";
  command.description =
      "Follows llama-perplexity: the text is cut into windows of -c tokens, the rest is dropped, each window "
      "starts with BOS, and "
      "the second half of each is scored. Lower is better; compare only figures taken with the same text and "
      "-c.";
  command.flags = join({{{.names = "-f, --file",
                          .argument = "FILE",
                          .kind = Kind::kFile,
                          .group = "Text",
                          .help = "the text; - reads standard input"},
                         {.names = "--chunks",
                          .argument = "N",
                          .kind = Kind::kInteger,
                          .fallback = "-1",
                          .group = "Text",
                          .help = "score only the first N windows; -1: all",
                          .min = -1,
                          .max = 16777216,
                          .hint = "-1 scores the whole text"},
                         {.names = "--all",
                          .group = "Text",
                          .help = "score every token of a window, not only its second half"}},
                        model_flags(),
                        {{.names = "-c, --ctx-size",
                          .argument = "N",
                          .kind = Kind::kInteger,
                          .fallback = "512",
                          .group = "Context",
                          .help = "tokens in a window; 0: what the model was trained with",
                          .min = 0,
                          .max = 16777216},
                         context_flags()[1],
                         context_flags()[2]},
                        cache_flags(),
                        output_flags()});
  command.examples = {{"kvasir perplexity -m gemma.gguf -f wiki.test.raw -c 512", "the usual figure"},
                      {"kvasir perplexity -m gemma.gguf -f text.txt -ctk q4_0 -ctv q4_0 --chunks 10",
                       "what a smaller cache costs"}};
  command.run = perplexity;
  return command;
}

}  // namespace kvasir::app
