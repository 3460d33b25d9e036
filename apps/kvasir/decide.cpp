// kvasir decide: which kernels and cache types a model gets on each backend, and why.
#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "command.h"
#include "decide/explain.h"
#include "decide/html.h"
#include "decide/matrix.h"
#include "decision_inputs.h"
#include "options.h"
#include "store.h"
#include "version.h"

namespace kvasir::app {
namespace {

constexpr std::string_view kShownGeometry = "gemma4-e2b";

decide::Request request_of(const Args& args) {
  decide::Request request;
  request.n_ctx = args.integer("ctx-size");
  request.n_ubatch = args.integer("ubatch-size");
  if (args.given("memory")) request.memory = decide::parse_size(args.text("memory"), "--memory");
  if (args.given("reserve")) request.reserve = decide::parse_size(args.text("reserve"), "--reserve");
  request.kl_max = args.number("kl-max");
  request.prefer_exact = args.on("prefer-exact-kv");
  request.allow_unverified = args.on("allow-unverified");
  const OnOff flash = parse_on_off(args.text("flash-attn"), "-fa");
  request.flash = flash == OnOff::kAuto ? decide::FlashWish::kAuto
                  : flash == OnOff::kOn ? decide::FlashWish::kOn
                                        : decide::FlashWish::kOff;
  return request;
}

decide::ModelGeometry named_geometry(const std::string& name, const std::string& type) {
  const gguf::Geometry* geometry = gguf::find_geometry(name);
  if (!geometry) fail(ErrorCode::kUsage, "--geometry {}: not known; known: {}", name, gguf::geometry_names());
  return decide::published_geometry(*geometry, type);
}

decide::Report make_report(const Args& args) {
  decide::Report report;
  report.request = request_of(args);
  std::optional<decide::QualityTable> quality;
  if (args.given("model")) {
    if (args.given("geometry"))
      fail(ErrorCode::kUsage, "-m and --geometry are both given; a decision is about one of them");
    report.geometry = decide::read_geometry(*gguf::File::open(args.text("model")));
    report.source = report.request.model = args.text("model");
    quality = current_quality(report.geometry.fingerprint);
  } else {
    const std::string name = args.given("geometry") ? args.text("geometry") : std::string(kShownGeometry);
    report.geometry = named_geometry(name, args.text("type"));
    report.source = fmt::format("published geometry, {} weights", args.text("type"));
  }
  const decide::QualityTable* table = quality ? &*quality : nullptr;
  for (const decide::RowInputs& inputs : row_inputs(thread_count(args), true)) {
    report.rows.push_back(decide::decide_row(report.geometry, table, report.request, inputs));
    if (inputs.device.host) report.machine = inputs.machine;
  }
  return report;
}

// 6 when no backend that is here (or the one asked about) holds the model and its context.
int exit_code(const decide::Report& report, const std::string& backend) {
  const decide::Row* refused = nullptr;
  for (const decide::Row& row : report.rows) {
    if (!backend.empty() && row.backend != backend) continue;
    if (row.no_memory)
      refused = refused ? refused : &row;
    else if (row.ctx_fits)
      return 0;
  }
  if (!refused) return 0;
  note("{}: does not fit on {}: {}", report.geometry.name, refused->backend, refused->reason);
  return int(ErrorCode::kNoMemory);
}

int print_matrix(const std::string& folder, bool as_recorded) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  if (error) fail(ErrorCode::kBadFile, "--matrix {}: {}", folder, error.message());
  if (paths.empty())
    fail(ErrorCode::kBadFile, "--matrix {}: no .json files there; tools/record-evidence makes them", folder);
  std::ranges::sort(paths);
  decide::MatrixInputs inputs;
  for (const std::string& path : paths) decide::add_evidence(inputs, read_file(path), path);
  std::map<std::string, std::string> kernels;
  for (const decide::Evidence& record : inputs.records)
    if (as_recorded)
      break;
    else if (const std::string hash = kernel_hash(record.backend); !hash.empty())
      kernels[record.backend] = hash;
    else
      note("backend '{}' is not in this program: whether its records are of current kernels is not known",
           record.backend);
  print(decide::matrix_markdown(inputs, kernels));
  flush_out();
  return 0;
}

void write_page(const decide::Report& report, const std::string& path) {
  const auto quality = current_quality(report.geometry.fingerprint);
  const auto speed = stored_speed(report.geometry.fingerprint);
  write_file(path, decide::report_html(report, quality ? &*quality : nullptr, speed ? &*speed : nullptr));
  note("page: {}", path);
}

int decide(const Args& args) {
  if (args.given("matrix")) return print_matrix(args.text("matrix"), args.on("as-recorded"));
  const decide::Report report = make_report(args);
  if (args.given("html")) write_page(report, args.text("html"));
  print(args.on("json") ? decide::report_json(report).dump(2) + "\n" : decide::report_text(report));
  flush_out();
  return exit_code(report, args.given("backend") ? args.text("backend") : "");
}

std::vector<Flag> question_flags() {
  constexpr std::string_view kGroup = "Question";
  return {
      {.names = "-m, --model",
       .argument = "FILE",
       .kind = Kind::kFile,
       .group = kGroup,
       .help = "the model, a GGUF file; a header alone will do"},
      {.names = "--geometry",
       .argument = "NAME",
       .kind = Kind::kText,
       .group = kGroup,
       .help = "a published geometry instead of a file (default gemma4-e2b)"},
      {.names = "--type",
       .argument = "TYPE",
       .kind = Kind::kText,
       .fallback = "q8_0",
       .group = kGroup,
       .help = "weights of a published geometry"},
      {.names = "-c, --ctx, --ctx-size",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "0",
       .group = kGroup,
       .help = "positions the context shall hold; 0: what the model was trained with, or what fits of it",
       .min = 0,
       .max = 16777216},
      {.names = "-ub, --ubatch-size",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "0",
       .group = kGroup,
       .help = "rows computed together; 0: 512 on a CPU, 2048 on a GPU (512 where no more fits)",
       .min = 0,
       .max = 8192},
      {.names = "--backend",
       .argument = "NAME",
       .kind = Kind::kChoice,
       .group = kGroup,
       .help = "the backend whose answer sets the exit code (default any that is here)",
       .choices = "cpu cuda vulkan vulkan-mali metal npu"},
      {.names = "-t, --threads",
       .argument = "N",
       .kind = Kind::kInteger,
       .group = kGroup,
       .help = "threads (default every core this process may use)",
       .min = 1,
       .max = 1024,
       .hint = "leave it out to use every core"},
  };
}

std::vector<Flag> limit_flags() {
  constexpr std::string_view kGroup = "Limits";
  return {
      {.names = "--memory",
       .argument = "SIZE",
       .kind = Kind::kText,
       .group = kGroup,
       .help = "memory to fill at most, e.g. 6GiB (default the device's, less --reserve)"},
      {.names = "--reserve",
       .argument = "SIZE",
       .kind = Kind::kText,
       .group = kGroup,
       .help =
           "memory to leave to others (default 1536MiB of a host's, 512MiB of a device's, none of --memory)"},
  };
}

}  // namespace

std::vector<Flag> choice_flags() {
  constexpr std::string_view kGroup = "Choice of cache types";
  return {
      {.names = "--kl-max",
       .argument = "X",
       .kind = Kind::kNumber,
       .fallback = "0.01",
       .group = kGroup,
       .help = "largest mean KL divergence a cache may cost, in nats, as `perplexity --kl` measured it",
       .min = 0,
       .max = 100},
      {.names = "--prefer-exact-kv", .group = kGroup, .help = "an f16 cache when that costs no context"},
      {.names = "--allow-unverified",
       .group = kGroup,
       .help = "compressed types without a record of `kvasir verify`; said in every later output"},
  };
}

Command decide_command() {
  Command command;
  command.name = "decide";
  command.summary = "which kernels and cache types a model gets here, and why";
  command.usage = "[options] [-m MODEL | --geometry NAME]";
  command.description =
      "Computes, for each kind of backend, which types keys and values get, whether flash attention runs, "
      "how much "
      "context fits and how fast it will be, from the model's header, this machine's memory, the records of "
      "`kvasir "
      "verify`, the figures of `kvasir devices --measure` and the KL divergences that `kvasir perplexity "
      "--kl` found "
      "on this model. What is not proved or not measured is not chosen, and the row says which command "
      "would. "
      "Exit 6 when nothing fits.";
  command.flags = join(
      {question_flags(),
       limit_flags(),
       choice_flags(),
       {{.names = "--html",
         .argument = "FILE",
         .kind = Kind::kFile,
         .group = "Output",
         .help = "also write one page that needs nothing else: the matrix and plots"},
        {.names = "--matrix",
         .argument = "DIR",
         .kind = Kind::kFile,
         .group = "Output",
         .help = "instead: one table, as Markdown, from the records, costs and qualities in a folder, of "
                 "as many machines as sent theirs"},
        {.names = "--as-recorded",
         .group = "Output",
         .help = "with --matrix: do not compare the records' kernels with this program's"},
        {.names = "-fa, --flash-attn",
         .argument = "WHEN",
         .kind = Kind::kOnOff,
         .fallback = "auto",
         .group = "Choice of cache types",
         .help = "fused attention: on, off or auto (also 1, 0)"},
        json_flag(),
        help_flag()}});
  command.examples = {
      {"kvasir decide", "Gemma 4 E2B on every backend"},
      {"kvasir decide -m gemma.gguf --ctx 131072 --memory 6GiB", "a file, a context, a budget"},
      {"kvasir decide --geometry gemma4-31b --type q4_k --json", "a published geometry, for programs"}};
  command.run = decide;
  return command;
}

}  // namespace kvasir::app
