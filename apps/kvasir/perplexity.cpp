// kvasir perplexity: how well a model predicts a text.
#include <chrono>
#include <memory>
#include <vector>

#include "base/error.h"
#include "cache_choice.h"
#include "command.h"
#include "decide/quality.h"
#include "engine/kl_divergence.h"
#include "formats/format.h"
#include "generation.h"
#include "graph/kv_layout.h"
#include "machine.h"
#include "store.h"
#include "version.h"

namespace kvasir::app {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What both ways of scoring need.
struct Task {
  std::shared_ptr<engine::Model> model;
  engine::SessionOptions session;
  std::vector<engine::Token> tokens;
  int n_ctx = 0, n_windows = 0;
  bool quiet = false;
  std::chrono::steady_clock::time_point start;

  // One line that overwrites itself on a terminal.
  void progress(int done, const std::string& figures) const {
    if (quiet) return;
    const double left = seconds_since(start) / done * (n_windows - done);
    const std::string line =
        fmt::format("window {:>4} of {}  {}  {:.0f} s left", done, n_windows, figures, left);
    print_err(err_is_terminal() ? "\r" + line + "\033[K" : line + "\n");
  }
};

Task prepare(const Args& args) {
  Task task;
  const std::string text = read_text(args.text("file"));
  require_utf8(text, args.text("file"));
  task.model = load_model(args, task.session);
  task.tokens = task.model->tokenizer().encode(text, false);
  if (task.model->tokenizer().add_bos())
    task.tokens.insert(task.tokens.begin(), task.model->tokenizer().bos());
  task.n_ctx = task.session.n_ctx;
  const int windows = int(task.tokens.size() / size_t(task.n_ctx));
  if (windows == 0)
    fail(ErrorCode::kUsage, "{}: {} tokens are fewer than one window of {}; give -c {} or a longer text",
         args.text("file"), task.tokens.size(), task.n_ctx, std::max<size_t>(task.tokens.size() / 2, 2));
  const int chunks = args.integer("chunks");
  task.n_windows = chunks > 0 ? std::min(chunks, windows) : windows;
  task.quiet = loudness(args) == Loudness::kQuiet;
  return task;
}

nlohmann::ordered_json describe(const Task& task, const engine::PerplexityResult& ppl) {
  const engine::KvTypes& kv = task.session.kv;
  return {{"ppl", ppl.ppl},
          {"ppl_err", ppl.ppl_err},
          {"n_tokens", ppl.n_tokens},
          {"n_ctx", task.n_ctx},
          {"k_type", formats::require(kv.k).name},
          {"v_type", formats::require(kv.v).name},
          {"n_chunks", ppl.n_chunks},
          {"model", task.model->description()},
          {"flash_attn", task.session.flash_attention},
          {"threads", task.model->n_threads()},
          {"seconds", seconds_since(task.start)}};
}

std::string summary_line(const Task& task, const engine::PerplexityResult& ppl) {
  return fmt::format("perplexity {:.4f} +- {:.4f} over {} tokens in {} windows of {} ({:.1f} s)\n", ppl.ppl,
                     ppl.ppl_err, ppl.n_tokens, ppl.n_chunks, task.n_ctx, seconds_since(task.start));
}

void run_plain(const Args& args, Task& task) {
  engine::Session session(task.model, task.session);
  const SessionEvidence evidence(session, args.on("allow-unverified"));
  evidence.show(task.quiet);
  if (!task.quiet) {
    note("{} tokens, {} windows of {}", task.tokens.size(), task.n_windows, task.n_ctx);
  }
  engine::PerplexityOptions options;
  options.n_ctx = task.n_ctx;
  options.max_chunks = args.integer("chunks");
  options.score_all = args.on("all");
  task.start = std::chrono::steady_clock::now();
  options.on_chunk = [&](const engine::PerplexityResult& now) {
    task.progress(now.n_chunks, fmt::format("perplexity {:.4f} +- {:.4f}", now.ppl, now.ppl_err));
  };
  const auto result = engine::perplexity(session, task.tokens, options);
  if (!task.quiet && err_is_terminal()) print_err("\n");
  if (args.on("json")) {
    nlohmann::ordered_json document = describe(task, result);
    document.update(evidence.json());
    print(document.dump(2) + "\n");
    return;
  }
  print(summary_line(task, result));
  if (!evidence.warning().empty()) print(evidence.warning() + "\n");
}

nlohmann::ordered_json describe(const engine::KlSummary& kl) {
  return {{"mean", kl.mean}, {"median", kl.median}, {"p999", kl.p999}, {"same_top", kl.same_top}};
}

// Keeps the figure for `kvasir decide`. Pages kept exact, the path without flash attention and a given table
// of tbq3_tcq are other caches.
void keep_quality(const Task& task, const engine::KlResult& result, bool decode) {
  const engine::SessionOptions& o = task.session;
  if (o.kv_exact_first != graph::kSinkTokens || o.kv_exact_last > 0 || !o.flash_attention || o.kv.tcq) return;
  const decide::ModelGeometry geometry = decide::read_geometry(task.model->file());
  decide::QualityTable table;
  if (auto stored = stored_quality(geometry.fingerprint)) table = *stored;
  table.fingerprint = geometry.fingerprint;
  table.model = task.model->description();
  table.geometry = decide::match_geometry(geometry);
  table.weights = recipe_name(task.model->file());
  decide::QualityRow row;
  row.types = {o.kv.k, o.kv.v, o.kv.k_sliding, o.kv.v_sliding};
  row.n_ctx = task.n_ctx;
  row.n_tokens = result.ppl.n_tokens;
  row.mean = result.kl.mean;
  row.median = result.kl.median;
  row.p999 = result.kl.p999;
  row.same_top = result.kl.same_top;
  row.floor = result.noise_floor.mean;
  row.ppl = result.ppl.ppl;
  row.exact_share = result.exact_share;
  row.decode = decode;
  row.kernel_hash = kernel_hash(task.model->backend().caps().name);
  row.date = utc_time();
  decide::add_row(table, row);
  const std::string path = store_quality(table);
  if (path.empty())
    note("the figure was not kept for `kvasir decide`: neither HOME nor XDG_CACHE_HOME is set");
  else if (!task.quiet)
    note("kept for `kvasir decide`: {}", path);
}

void run_kl(const Args& args, Task& task) {
  engine::Session tested(task.model, task.session);
  engine::SessionOptions exact = task.session;
  exact.kv = {DType::f16, DType::f16, {}, {}};
  engine::Session reference(task.model, exact);
  exact.kv = {DType::f32, DType::f32, {}, {}};
  engine::Session floor(task.model, exact);
  const SessionEvidence evidence(tested, args.on("allow-unverified"));
  evidence.show(task.quiet);
  if (!task.quiet) {
    note("{} tokens, {} windows of {}, against an f16 cache; noise floor: f16 against f32",
         task.tokens.size(), task.n_windows, task.n_ctx);
  }
  engine::KlOptions options;
  options.n_ctx = task.n_ctx;
  options.max_chunks = args.integer("chunks");
  options.score_all = args.on("all");
  options.decode = args.on("decode");
  task.start = std::chrono::steady_clock::now();
  options.on_chunk = [&](const engine::KlResult& now) {
    task.progress(now.ppl.n_chunks, fmt::format("perplexity {:.4f}  KL {:.6f}", now.ppl.ppl, now.kl.mean));
  };
  const engine::KlResult result = engine::kl_divergence(tested, reference, floor, task.tokens, options);
  if (!task.quiet && err_is_terminal()) print_err("\n");
  keep_quality(task, result, options.decode);
  if (args.on("json")) {
    nlohmann::ordered_json document = describe(task, result.ppl);
    document["decode"] = options.decode;
    document["exact_share"] = result.exact_share;
    document["kl"] = describe(result.kl);
    document["noise_floor"] = describe(result.noise_floor);
    document["resolved"] = result.resolved();
    document.update(evidence.json());
    print(document.dump(2) + "\n");
    return;
  }
  print(summary_line(task, result.ppl));
  const auto row = [](const char* name, const engine::KlSummary& kl, const char* remark) {
    print(fmt::format("{:<11} mean {:.2g}  median {:.2g}  99.9 % {:.2g}  same top token {:.2f} %{}\n", name,
                      kl.mean, kl.median, kl.p999, 100 * kl.same_top, remark));
  };
  row("KL", result.kl, result.resolved() ? "" : "  unresolved: under twice the noise floor");
  row("noise floor", result.noise_floor, "");
  print(fmt::format("exact       {:.2f} % of the keys and values read\n", 100 * result.exact_share));
  if (!evidence.warning().empty()) print(evidence.warning() + "\n");
}

int perplexity(const Args& args) {
  if (!args.given("file")) fail(ErrorCode::kUsage, "no text; give -f FILE, or -f - to read standard input");
  if (args.on("decode") && !args.on("kl")) fail(ErrorCode::kUsage, "--decode belongs to --kl; give both");
  require_backend(args);
  kv_types(args);
  Task task = prepare(args);
  if (args.on("kl"))
    run_kl(args, task);
  else
    run_plain(args, task);
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
                          .help = "score every token of a window, not only its second half"},
                         {.names = "--kl",
                          .group = "Text",
                          .help = "also the KL divergence from the same model with an f16 cache"},
                         {.names = "--decode",
                          .group = "Text",
                          .help = "with --kl: one token at a time, through the kernels of generation"}},
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
                        cache_flags("q8_0"),
                        {choice_flags()[2]},
                        output_flags()});
  command.examples = {{"kvasir perplexity -m gemma.gguf -f wiki.test.raw -c 512", "the usual figure"},
                      {"kvasir perplexity -m gemma.gguf -f text.txt -ctk q4_0 -ctv q4_0 --chunks 10",
                       "what a smaller cache costs"},
                      {"kvasir perplexity --kl -m gemma.gguf -f text.txt -ctk tbq4_h -ctv tbq4_h --chunks 10",
                       "how far it moves the predictions"}};
  command.run = perplexity;
  return command;
}

}  // namespace kvasir::app
