// kvasir bench: llama-bench's tests, names and columns, beside the machine's own limits.
#include "bench.h"

#include <algorithm>

#include "backends/registry/registry.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "command.h"
#include "formats/format.h"

namespace kvasir::app {
namespace {

constexpr double kProbeSeconds = 0.5;

std::vector<BenchTest> tests_of(const Args& args) {
  std::vector<int> prompts = args.integers("n-prompt"), gens = args.integers("n-gen");
  const std::vector<std::string> mixed = args.given("pg") ? args.texts("pg") : std::vector<std::string>();
  if (mixed.size() % 2)
    fail(ErrorCode::kUsage, "-pg {}: must be PROMPT,GENERATED, for example 512,128", args.text("pg"));
  // Asking for one kind of test alone leaves out the defaults of the others.
  const bool asked = args.given("n-prompt") || args.given("n-gen") || args.given("pg");
  if (asked && !args.given("n-prompt")) prompts.clear();
  if (asked && !args.given("n-gen")) gens.clear();
  std::vector<int> depths = args.integers("n-depth");
  std::ranges::sort(depths);  // a deeper prefix extends the one before
  std::vector<BenchTest> tests;
  for (int depth : depths) {
    for (int n : prompts)
      if (n > 0) tests.push_back({n, 0, depth});
    for (int n : gens)
      if (n > 0) tests.push_back({0, n, depth});
    for (size_t i = 0; i + 1 < mixed.size(); i += 2)
      tests.push_back(
          {int(expand_integers(mixed[i], "-pg")[0]), int(expand_integers(mixed[i + 1], "-pg")[0]), depth});
  }
  for (const BenchTest& test : tests)
    if (test.n_prompt < 0 || test.n_gen < 0 || test.n_prompt + test.n_gen == 0)
      fail(ErrorCode::kUsage, "-pg {}: both numbers must be positive", args.text("pg"));
  if (tests.empty())
    fail(ErrorCode::kUsage, "nothing to measure: -p and -n are both 0; give one of them a number");
  return tests;
}

// The pairs with --tcq-table where they have tbq3_tcq.
std::vector<engine::KvTypes> with_table(const Args& args, std::vector<engine::KvTypes> pairs) {
  const auto table = tcq_table(args);
  if (table && std::ranges::none_of(pairs, [](const auto& kv) { return kv.uses_tcq(); }))
    fail(ErrorCode::kUsage, "--tcq-table {}: no pair of types has the type it is for, tbq3_tcq",
         args.text("tcq-table"));
  for (engine::KvTypes& kv : pairs)
    if (kv.uses_tcq()) kv.tcq = table;
  return pairs;
}

std::vector<engine::KvTypes> kv_pairs(const Args& args) {
  const std::string& backend = args.text("backend");
  std::vector<engine::KvTypes> pairs;
  if (args.given("kv-types")) {
    if (args.given("cache-type-k") || args.given("cache-type-v"))
      fail(ErrorCode::kUsage, "-ctkv gives K and V together; leave out -ctk and -ctv");
    for (const std::string& pair : args.texts("kv-types")) {
      const auto names = split(pair, '/');
      for (const std::string& name : names)
        if (names.size() != 2 || !formats::find(name))
          fail(ErrorCode::kUsage, "-ctkv {}: must be K/V, two of: {}", pair, cache_types_text());
      pairs.push_back({.k = kv_type(names[0], true, backend),
                       .v = kv_type(names[1], false, backend),
                       .k_sliding = {},
                       .v_sliding = {},
                       .tcq = {}});
    }
    return with_table(args, std::move(pairs));
  }
  const auto named = [](const std::string& name) { return name == "auto" ? std::string("q8_0") : name; };
  for (const std::string& k_name : args.texts("cache-type-k"))
    for (const std::string& v_name : args.texts("cache-type-v")) {
      const std::string k = named(k_name), v = named(v_name);
      pairs.push_back({.k = kv_type(k, true, backend),
                       .v = kv_type(v, false, backend),
                       .k_sliding = {},
                       .v_sliding = {},
                       .tcq = {}});
    }
  return with_table(args, std::move(pairs));
}

std::vector<BenchSetup> setups_of(const Args& args) {
  std::vector<BenchSetup> setups;
  const bool decided =
      !args.given("kv-types") && args.text("cache-type-k") == "auto" && args.text("cache-type-v") == "auto";
  for (int n_batch : args.integers("batch-size"))
    for (int n_ubatch : args.integers("ubatch-size"))
      for (const engine::KvTypes& kv : kv_pairs(args))
        for (const std::string& flash : args.texts("flash-attn"))
          setups.push_back({kv, decided, flash_attention(flash, "-fa", args.text("backend")), n_batch,
                            micro_batch(n_ubatch, n_batch, args.text("backend"))});
  return setups;
}

std::vector<std::string> varied_names(const Args& args) {
  std::vector<std::string> names;
  for (std::string_view key : {"batch-size", "ubatch-size", "cache-type-k", "cache-type-v", "flash-attn"})
    if (args.given(key)) names.emplace_back(key);
  if (args.given("kv-types")) names.insert(names.end(), {"cache-type-k", "cache-type-v"});
  return names;
}

int bench(const Args& args) {
  require_backend(args);
  const std::string& backend = args.text("backend");
  BenchPlan plan;
  plan.tests = tests_of(args);
  plan.setups = setups_of(args);
  plan.repetitions = args.integer("repetitions");
  plan.warm_up = !args.on("no-warmup");
  plan.question = cache_question(args);
  plan.quiet = loudness(args) == Loudness::kQuiet;
  const std::vector<std::string> models =
      args.given("model") ? args.texts("model") : std::vector{model_path(args)};
  const std::vector<int> threads =
      args.given("threads") ? args.integers("threads") : std::vector{cpu_count()};

  const auto writer = make_bench_writer(args.text("output"), varied_names(args));
  writer->begin();
  for (int n_threads : threads) {
    cpu::Roofline roofline;
    if (backend != "cpu") {
      roofline.read_gb_s = backends::copy_rate(backend) / 1e9;
    } else {
      ThreadPool pool(n_threads);
      roofline = cpu::measure_roofline(pool, kProbeSeconds);
    }
    for (const std::string& path : models)
      measure(load_model(path, n_threads, loudness(args), backend), plan, roofline,
              [&](const BenchRow& row) { writer->row(row); });
  }
  writer->end();
  flush_out();
  return 0;
}

std::vector<Flag> test_flags() {
  constexpr std::string_view kGroup = "Tests (lists: 128,512 or ranges: 128-2048*2)";
  return {
      {.names = "-p, --n-prompt",
       .argument = "LIST",
       .kind = Kind::kIntegers,
       .fallback = "512",
       .group = kGroup,
       .help = "prompt lengths; 0: no such test",
       .min = 0,
       .max = 16777216},
      {.names = "-n, --n-gen",
       .argument = "LIST",
       .kind = Kind::kIntegers,
       .fallback = "128",
       .group = kGroup,
       .help = "tokens generated; 0: no such test",
       .min = 0,
       .max = 16777216},
      {.names = "-pg, --pg",
       .argument = "PP,TG",
       .kind = Kind::kTexts,
       .group = kGroup,
       .help = "a prompt and a generation timed together; may be repeated"},
      {.names = "-d, --n-depth",
       .argument = "LIST",
       .kind = Kind::kIntegers,
       .fallback = "0",
       .group = kGroup,
       .help = "tokens already in the context before each test",
       .min = 0,
       .max = 16777216},
      {.names = "-r, --repetitions",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "5",
       .group = kGroup,
       .help = "times each test is run",
       .min = 1,
       .max = 10000},
      {.names = "--no-warmup", .group = kGroup, .help = "time the first run too"},
  };
}

std::vector<Flag> setup_flags() {
  constexpr std::string_view kGroup = "Setup (lists)";
  return {
      {.names = "-t, --threads",
       .argument = "LIST",
       .kind = Kind::kIntegers,
       .group = kGroup,
       .help = "threads (default every core this process may use)",
       .min = 1,
       .max = 1024,
       .hint = "leave it out to use every core"},
      {.names = "-b, --batch-size",
       .argument = "LIST",
       .kind = Kind::kIntegers,
       .fallback = "2048",
       .group = kGroup,
       .help = "tokens handed over at once",
       .min = 1,
       .max = 1048576},
      {.names = "-ub, --ubatch-size",
       .argument = "LIST",
       .kind = Kind::kIntegers,
       .fallback = "0",
       .group = kGroup,
       .help = "rows computed together; 0: 512 on a CPU, 2048 on a GPU (512 where no more fits)",
       .min = 0,
       .max = 8192},
      {.names = "-ctk, --cache-type-k",
       .argument = "LIST",
       .kind = Kind::kKvTypes,
       .fallback = "auto",
       .group = kGroup,
       .help = "storage types of keys; auto: as `kvasir decide` says"},
      {.names = "-ctv, --cache-type-v",
       .argument = "LIST",
       .kind = Kind::kKvTypes,
       .fallback = "auto",
       .group = kGroup,
       .help = "storage types of values"},
      {.names = "-ctkv, --kv-types",
       .argument = "K/V,...",
       .kind = Kind::kTexts,
       .group = kGroup,
       .help = "pairs of both, e.g. f16/f16,q8_0/q4_0"},
      tcq_table_flag(kGroup),
      {.names = "-fa, --flash-attn",
       .argument = "LIST",
       .kind = Kind::kTexts,
       .fallback = "auto",
       .group = kGroup,
       .help = "fused attention: on, off, auto (also 1, 0)"},
  };
}

}  // namespace

Command bench_command() {
  Command command;
  command.name = "bench";
  command.summary = "how fast a model runs here, beside what the machine can do";
  command.usage = "[options] -m MODEL";
  command.description =
      "Names, columns and JSON keys are llama-bench's; added are the median, the bytes read a second, and "
      "the share of the "
      "roofline: generation against the read bandwidth and prompts against the int8 peak, both measured in "
      "the same run. A row "
      "taken while other programs used more than 10 % of the machine is marked contended.\n\n"
      "No tokenizing or sampling is timed. The context before a deep test is computed once for all of its "
      "tests.";
  Flag backend = model_flags()[2], layers = model_flags()[3];
  command.flags = join(
      {{{.names = "-m, --model",
         .argument = "FILE",
         .kind = Kind::kTexts,
         .group = "Model",
         .help = "a GGUF file; may be repeated (default the test model that comes with kvasir)"},
        backend,
        layers},
       test_flags(),
       setup_flags(),
       choice_flags(),
       {{.names = "-o, --output",
         .argument = "FORMAT",
         .kind = Kind::kChoice,
         .fallback = "md",
         .group = "Output",
         .help = "output format",
         .choices = "md json jsonl csv"},
        {.names = "-v, --verbose", .group = "Output", .help = "more lines about what happens"},
        {.names = "-q, --quiet", .group = "Output", .help = "warnings and errors only on standard error"},
        help_flag()}});
  command.examples = {
      {"kvasir bench -m gemma.gguf", "pp512 and tg128"},
      {"kvasir bench -m gemma.gguf -p 512 -n 128 -d 0,16384 -ctkv f16/f16,q8_0/q8_0",
       "what depth and cache type cost"},
      {"kvasir bench -m gemma.gguf -o json > result.json", "for scripts that read llama-bench"}};
  command.run = bench;
  return command;
}

}  // namespace kvasir::app
