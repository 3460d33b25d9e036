#include "self_check.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>

#include "backends/registry/registry.h"
#include "base/error.h"
#include "base/sha256.h"
#include "formats/format.h"
#include "store.h"
#include "verify/checks/attention_case.h"
#include "version.h"

namespace kvasir::app {
namespace {

namespace fs = std::filesystem;

// A prompt across a page's edge, then single rows.
constexpr int kPrompt = 96, kTokens = 99, kPlaces = 4;

std::string text_of(const AttentionUse& use) {
  return fmt::format("{} {} {} {}", formats::require(use.k).name, formats::require(use.v).name, use.head_dim,
                     use.flash ? "flash" : "plain");
}

std::string store_path(const std::string& backend, const std::string& device) {
  const std::string folder = cache_folder(), key = kernel_hash(backend) + "\n" + device + "\n";
  if (folder.empty()) return "";
  const std::string hash = sha256_hex(std::as_bytes(std::span(key))).substr(0, 16);
  return (fs::path(folder) / "self-check" / (backend + "-" + hash + ".txt")).string();
}

std::vector<std::string> passed_before(const std::string& path) {
  std::error_code error;
  std::vector<std::string> lines;
  if (path.empty() || !fs::exists(path, error)) return lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

void check_one(backends::Backend& backend, ThreadPool& workers, const AttentionUse& use) {
  verify::RigSpec spec;
  spec.k = use.k;
  spec.v = use.v;
  spec.head_dim = use.head_dim;
  spec.n_head = 2;
  spec.flash = use.flash;
  spec.lengths = {kTokens};
  spec.max_rows = kPrompt;
  spec.gain = 1.5;
  verify::Rig rig(backend, spec);
  verify::Rig::Take take{0, kPrompt};
  rig.step({&take, 1});
  take.n = 1;
  for (int i = kPrompt; i < kTokens; ++i) rig.step({&take, 1});
  const verify::Comparison result =
      verify::compare_outputs(rig, verify::interesting_rows(spec, kPlaces), workers);
  if (result.within()) return;
  fail(ErrorCode::kFailed,
       "self-check: attention over {} is wrong on this machine (difference {:.3g}, bound {:.3g}, {} of {} "
       "values beyond "
       "it); run `kvasir verify` and report what it says; other types may work (-ctk, -ctv)",
       text_of(use), result.figure, result.bound, result.over + result.not_finite, result.n);
}

}  // namespace

void self_check(const std::string& backend, const std::string& device, int threads,
                const std::vector<AttentionUse>& uses, std::string* line) {
  const std::string path = store_path(backend, device);
  std::vector<std::string> known = passed_before(path);
  const auto start = std::chrono::steady_clock::now();
  std::unique_ptr<backends::Backend> probe;
  ThreadPool workers(threads);
  int n = 0;
  for (const AttentionUse& use : uses) {
    if (std::ranges::find(known, text_of(use)) != known.end()) continue;
    if (!probe) probe = backends::create_backend(backend, threads);
    check_one(*probe, workers, use);
    known.push_back(text_of(use));
    ++n;
  }
  if (n == 0) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  *line = fmt::format("self-check of {} attention kernel{} against double precision: passed ({:.2f} s)", n,
                      n == 1 ? "" : "s", seconds);
  std::string text;
  for (const std::string& one : known) text += one + "\n";
  try {
    if (!path.empty()) write_file(path, text);
  } catch (const Error&) {
    // A folder that cannot be written only means that it runs again.
  }
}

}  // namespace kvasir::app
