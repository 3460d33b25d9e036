// kvasir verify: proves the kernels of this program on this machine, and keeps the record.
#include "verify/verify.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "backends/registry/registry.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "build_info.h"
#include "command.h"
#include "decide/evidence.h"
#include "decision_inputs.h"
#include "machine.h"
#include "options.h"
#include "store.h"
#include "verify/fixtures.h"
#include "version.h"

namespace kvasir::app {
namespace {

namespace fs = std::filesystem;
using decide::CheckResult;
using decide::Evidence;
using decide::Verdict;
using Json = nlohmann::ordered_json;

constexpr int kShownFailures = 8;

std::string require_folder() {
  const std::string folder = evidence_folder();
  if (folder.empty()) fail(ErrorCode::kUsage, "there is no folder for records; set HOME or XDG_CACHE_HOME");
  return folder;
}

std::vector<std::string> chosen_backends(const Args& args) {
  if (args.given("backend")) return {args.text("backend")};
  std::vector<std::string> names;
  for (const backends::BackendStatus& status : backends::known_backends())
    if (status.available) names.push_back(status.name);
  return names;
}

std::string model_file() {
  try {
    return test_model();
  } catch (const Error&) {
    return "";  // the group end_to_end then says so
  }
}

std::string file_hash(const std::string& path) {
  return path.empty() ? "" : sha256_hex(MappedFile(path).bytes());
}

std::string what(const CheckResult& check) {
  std::string text = check.name;
  if (!check.k.empty() && !check.v.empty() && text.find(check.k) == text.npos)
    text += fmt::format(" {}/{}", check.k, check.v);
  if (check.head_dim) text += fmt::format(" at head size {}", check.head_dim);
  return text;
}

double share(const CheckResult& check) {
  if (check.verdict == Verdict::kNotApplicable) return -1;
  return check.bound > 0 ? check.figure / check.bound : check.figure > 0 ? HUGE_VAL : 0;
}

std::string group_lines(std::string_view group, std::span<const CheckResult> checks, double seconds) {
  int passed = 0, total = 0, failed = 0;
  const CheckResult* worst = nullptr;
  for (const CheckResult& check : checks) {
    if (check.verdict == Verdict::kNotApplicable) continue;
    ++total;
    passed += check.verdict == Verdict::kPassed;
    if (!worst || share(check) > share(*worst)) worst = &check;
  }
  std::string figure = "-";
  if (worst && worst->bound > 0)
    figure = fmt::format("{:.2g} of {:.2g}: {}", worst->figure, worst->bound, what(*worst));
  else if (worst)
    figure = fmt::format("{:.3g} differ", worst->figure);
  std::string text = fmt::format("{:<12}{:>12}{:>8.1f} s  {}\n", group, fmt::format("{}/{}", passed, total),
                                 seconds, figure);
  for (const CheckResult& check : checks) {
    if (check.verdict != Verdict::kFailed || ++failed > kShownFailures) continue;
    text += fmt::format("  failed    {}: {:.3g} against {:.3g}: {}{}\n", what(check), check.figure,
                        check.bound, check.reason, check.variant.empty() ? "" : " [" + check.variant + "]");
  }
  if (failed > kShownFailures)
    text += fmt::format("  failed    and {} more; --json lists all\n", failed - kShownFailures);
  return text;
}

Evidence verify_backend(const Args& args, const std::string& backend, const std::string& model) {
  verify::Options options;
  options.backend = backend;
  options.isa = args.text("isa");
  options.groups = args.texts("group");
  options.head_dims = args.integers("head-dim");
  options.full = args.on("full");
  options.n_threads = thread_count(args);
  options.model = model;
  options.tcq = tcq_table(args);
  const bool json = args.on("json");
  const decide::Here machine = here_of(backend);
  if (!json)
    print(fmt::format("{}: {}, {} thread{}, kernels {}{}\n", backend, machine.device, options.n_threads,
                      options.n_threads == 1 ? "" : "s", kernel_hash(backend).substr(0, 12),
                      options.tcq ? ", table of tbq3_tcq " + options.tcq->hash.substr(0, 12) : ""));
  Progress progress("verifying");
  size_t n_done = 0;
  const size_t n_groups = options.groups.empty() ? verify::groups().size() : options.groups.size();
  options.on_start = [&](std::string_view) { progress.update(double(n_done++) / double(n_groups)); };
  options.on_group = [&](std::string_view group, std::span<const CheckResult> checks, double seconds) {
    progress.clear();
    if (!json) print(group_lines(group, checks, seconds));
    flush_out();
  };
  Evidence e;
  e.load_average = load_average();
  e.date = utc_time();
  const verify::Outcome outcome = verify::run(options);
  e.backend = backend;
  e.device = outcome.device;
  e.device_uuid = machine.device_uuid;
  e.driver = backend_caps(backend).driver;
  e.isa = outcome.isa;
  e.commit = commit();
  e.kernel_hash = kernel_hash(backend);
  e.binary_sha256 = file_hash("/proc/self/exe");
  e.model_sha256 = file_hash(model);
  e.compiler = compiler_text(backend);
  e.flags = build_info::kFlags;
  if (options.tcq) e.tcq_table = options.tcq->hash;
  e.threads = options.n_threads;
  e.seconds = outcome.seconds;
  e.checks = outcome.checks;
  decide::judge(e, outcome.doubts);
  return e;
}

// record-cuda-nvidia-h200.json: what `decide --matrix` reads, one file a backend and device.
void write_record(const std::string& folder, const Evidence& e) {
  std::string name = "record-" + e.backend + "-" + e.device, slug;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)))
      slug += char(std::tolower(static_cast<unsigned char>(c)));
    else if (!slug.empty() && slug.back() != '-')
      slug += '-';
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  const std::string path = (fs::path(folder) / (slug + ".json")).string();
  write_file(path, decide::to_json(e) + "\n");
  note("record: {}", path);
}

// A run of some groups proves nothing by itself and is not kept.
bool whole(const Args& args) { return !args.given("group") && !args.given("head-dim") && !args.given("isa"); }

// Checks make and free caches of a few MiB by the thousand: kept by the process, their pages are not asked of the
// kernel and cleared each time.
void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 256 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
#endif
}

int run_checks(const Args& args) {
  keep_freed_memory();
  const std::string model = model_file(), folder = evidence_folder();
  Json list = Json::array();
  int failed = 0;
  for (const std::string& backend : chosen_backends(args)) {
    const Evidence e = verify_backend(args, backend, model);
    failed += e.failed();
    if (args.on("json")) {
      list.push_back(Json::parse(decide::to_json(e)));
    } else {
      print(fmt::format("{:<12}{:>12}{:>8.1f} s  {}{}\n", e.failed() ? "FAILED" : "passed",
                        fmt::format("{}/{}", e.passed(), e.passed() + e.failed()), e.seconds,
                        e.recordable ? "recordable" : "diagnostic: " + e.reason,
                        e.skipped() ? fmt::format("; {} not applicable", e.skipped()) : ""));
    }
    if (!whole(args)) continue;
    if (args.given("record")) write_record(args.text("record"), e);
    if (folder.empty()) {
      note("the record was not kept: neither HOME nor XDG_CACHE_HOME is set");
      continue;
    }
    const std::string path = decide::store(folder, e);
    if (path.empty())
      note("the record was not kept: a recordable one of these kernels and this device is there already");
    else if (!args.on("json"))
      note("record: {}", path);
  }
  if (args.on("json")) print(list.dump(2) + "\n");
  flush_out();
  if (failed == 0) return 0;
  note("{} check{} failed: this program's kernels are not to be trusted here", failed,
       failed == 1 ? "" : "s");
  return int(ErrorCode::kFailed);
}

// What speaks against a record here; a backend that is not here is a reason like any other.
std::vector<std::string> doubts_here(const Evidence& e) {
  for (const backends::BackendStatus& status : backends::known_backends())
    if (status.name == e.backend && status.available) return decide::doubts(e, here_of(e.backend));
  return {fmt::format("backend '{}' of '{}' is not here", e.backend, e.device)};
}

int check_record(const std::string& path) {
  const Evidence e = decide::load_record(path);
  const std::vector<std::string> against = doubts_here(e);
  print(fmt::format("{}: {} on {}, {}, {}/{} passed, kernels {}{}\n", path, e.backend, e.device, e.date,
                    e.passed(), e.passed() + e.failed(), e.kernel_hash.substr(0, 12),
                    e.tcq_table.empty() ? "" : ", table of tbq3_tcq " + e.tcq_table.substr(0, 12)));
  for (const std::string& doubt : against) print("  " + doubt + "\n");
  print(against.empty() ? "valid: it proves this program's kernels on this device\n" : "not valid here\n");
  flush_out();
  if (against.empty()) return 0;
  note("{}: not valid here; run kvasir verify", path);
  return int(ErrorCode::kFailed);
}

int list_records(const Args& args) {
  Json list = Json::array();
  std::string text;
  for (const decide::StoredRecord& stored : decide::stored_records(require_folder())) {
    std::vector<std::string> against = {stored.fault};
    if (stored.record) against = doubts_here(*stored.record);
    const std::string file = fs::path(stored.path).filename().string();
    if (!args.on("json")) {
      text += stored.record
                  ? fmt::format("{}  {}  {}  {}/{}  {}\n", file, stored.record->date, stored.record->device,
                                stored.record->passed(), stored.record->passed() + stored.record->failed(),
                                against.empty() ? "valid here" : fmt::format("{}", fmt::join(against, "; ")))
                  : fmt::format("{}  {}\n", file, stored.fault);
      continue;
    }
    Json row = {{"file", file}, {"valid", against.empty()}, {"doubts", against}};
    if (stored.record)
      row.update({{"backend", stored.record->backend},
                  {"device", stored.record->device},
                  {"date", stored.record->date},
                  {"kernel_hash", stored.record->kernel_hash},
                  {"recordable", stored.record->recordable},
                  {"passed", stored.record->passed()},
                  {"failed", stored.record->failed()}});
    list.push_back(row);
  }
  if (args.on("json")) text = list.dump(2) + "\n";
  if (text.empty()) note("no records; kvasir verify makes one");
  print(text);
  flush_out();
  return 0;
}

// Public fixtures, by the scalar codecs that every kernel is held to.
int check_fixtures(const Args& args) {
  if (args.given("backend") && args.text("backend") != "cpu")
    fail(ErrorCode::kRefused,
         "--fixtures: required: backend {}; supported: cpu, whose scalar codecs read public fixtures; "
         "missing: "
         "older bytes on {}",
         args.text("backend"), args.text("backend"));
  const auto table = tcq_table(args);
  Json list = Json::array();
  int failed = 0;
  for (const std::string& path : args.texts("fixtures")) {
    const verify::FixtureResult r = verify::check_fixture(path, table.get());
    failed += r.passed != r.total;
    if (args.on("json"))
      list.push_back({{"file", path},
                      {"kernel", r.kernel},
                      {"passed", r.passed},
                      {"total", r.total},
                      {"tolerance", verify::kFixtureTolerance},
                      {"max_diff", r.max_diff},
                      {"max_relative", r.max_relative}});
    else
      print(fmt::format(
          "{}: {} {}/{} outputs within {}; largest difference {:.3g}, {:.3g} of the largest output\n", path,
          r.kernel, r.passed, r.total, verify::kFixtureTolerance, r.max_diff, r.max_relative));
  }
  if (args.on("json")) print(list.dump(2) + "\n");
  flush_out();
  if (failed == 0) return 0;
  note("{} of {} fixture files differ", failed, args.texts("fixtures").size());
  return int(ErrorCode::kFailed);
}

int verify(const Args& args) {
  const int modes = args.on("list") + args.on("forget") + args.given("check") + args.given("fixtures");
  if (modes > 1) fail(ErrorCode::kUsage, "--list, --forget, --check and --fixtures exclude each other");
  if (args.given("fixtures")) return check_fixtures(args);
  if (args.given("tcq-table") && modes > 0)
    fail(ErrorCode::kUsage, "--tcq-table goes with --fixtures or with a run of the checks");
  if (args.given("record") && (modes > 0 || !whole(args)))
    fail(ErrorCode::kUsage, "--record keeps a whole run; leave out what makes it a part");
  if (args.given("check")) return check_record(args.text("check"));
  if (args.on("list")) return list_records(args);
  if (args.on("forget")) {
    const int n = decide::forget(require_folder(), args.given("backend") ? args.text("backend") : "");
    print(fmt::format("{} record{} removed\n", n, n == 1 ? "" : "s"));
    return 0;
  }
  return run_checks(args);
}

}  // namespace

Command verify_command() {
  std::string groups;
  for (const verify::Group& group : verify::groups())
    groups += fmt::format("\n{}: {}.", group.name, group.what);
  static const std::string description =
      "Runs every kernel that this program has for this machine through the same graphs that generate text, "
      "and "
      "compares with double-precision arithmetic that shares no code with them. What passes is kept as a "
      "record; "
      "a record counts only for the same kernels on the same device.\n\nGroups of checks:" +
      groups;
  Command command;
  command.name = "verify";
  command.summary = "prove this program's kernels on this machine";
  command.usage = "[options]";
  command.description = description;
  command.flags = {
      {.names = "--backend",
       .argument = "NAME",
       .kind = Kind::kText,
       .group = "What to check",
       .help = "cpu, cuda, vulkan or metal (default every backend that is here)"},
      {.names = "--group",
       .argument = "LIST",
       .kind = Kind::kTexts,
       .group = "What to check",
       .help = "only these groups, comma separated; the result is then diagnostic"},
      {.names = "--head-dim",
       .argument = "LIST",
       .kind = Kind::kIntegers,
       .group = "What to check",
       .help = "only these head sizes; the result is then diagnostic",
       .min = 1,
       .max = 65536},
      {.names = "--full",
       .group = "What to check",
       .help = "every pair of types in every shape at every head size"},
      {.names = "--isa",
       .argument = "NAME",
       .kind = Kind::kText,
       .group = "What to check",
       .help = "slower kernels than the best: generic, avx2, avx512 or neon of a CPU, sm_80 of a GPU; the result is then diagnostic"},
      {.names = "-t, --threads",
       .argument = "N",
       .kind = Kind::kInteger,
       .group = "What to check",
       .help = "threads (default every core this process may use)",
       .min = 1,
       .max = 1024,
       .hint = "leave it out to use every core"},
      {.names = "--fixtures",
       .argument = "FILE,...",
       .kind = Kind::kTexts,
       .group = "Public fixtures",
       .help = "read these JSON fixtures instead, and print how many of their outputs agree"},
      tcq_table_flag("What to check"),
      {.names = "--record",
       .argument = "DIR",
       .kind = Kind::kText,
       .group = "Records",
       .help = "also write the record to DIR, by backend and device, as decide --matrix reads it"},
      {.names = "--list", .group = "Records", .help = "the records kept, and whether each is valid here"},
      {.names = "--check",
       .argument = "RECORD",
       .kind = Kind::kFile,
       .group = "Records",
       .help = "whether this record proves this program on this machine: exit 0 or 1"},
      {.names = "--forget", .group = "Records", .help = "remove the records kept (of --backend)"},
      json_flag(),
      help_flag()};
  command.examples = {{"kvasir verify", "everything, on every backend that is here"},
                      {"kvasir verify --group scores,fused --head-dim 256", "a part"},
                      {"kvasir verify --json > record.json", "the record for other programs"}};
  command.run = verify;
  return command;
}

}  // namespace kvasir::app
