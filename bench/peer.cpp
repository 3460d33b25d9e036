// peer MODEL LLAMA_BENCH [rounds] [threads]: `kvasir bench` and a llama-bench binary in turn on the same file (ABAB...), medians,
// ratios, and the machine's own peaks from the same run. The other program is the user's own build; nothing of it is here.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backends/cpu/roofline.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace {

using kvasir::ErrorCode;
using kvasir::fail;

std::string output_of(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + " 2>/dev/null").c_str(), "r"), pclose);
  if (!pipe) fail(ErrorCode::kFailed, "cannot run: {}", command);
  std::string out;
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe.get())) > 0;) out.append(buffer.data(), n);
  return out;
}

struct Rates {
  std::vector<double> prompt, generate;
};

// Tokens a second of each repetition, by llama-bench's own JSON keys.
void add_rates(const std::string& command, Rates& rates) {
  const std::string out = output_of(command);
  const auto rows = nlohmann::json::parse(out, nullptr, false);
  if (!rows.is_array() || rows.empty()) fail(ErrorCode::kFailed, "no JSON rows from: {}", command);
  for (const auto& row : rows) {
    std::vector<double>& list = row["n_gen"].get<int>() > 0 ? rates.generate : rates.prompt;
    for (double rate : row["samples_ts"]) list.push_back(rate);
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void print_row(const char* test, const Rates& ours, const Rates& theirs, std::vector<double> Rates::*list) {
  const double a = median(ours.*list), b = median(theirs.*list);
  fmt::print("| {:6} | {:9.1f} | {:9.1f} | {:5.2f}x | {} / {} |\n", test, a, b, b > 0 ? a / b : 0, (ours.*list).size(),
             (theirs.*list).size());
}

int run(int argc, char** argv) {
  if (argc < 3) fail(ErrorCode::kUsage, "usage: peer MODEL LLAMA_BENCH [rounds=4] [threads=2] [kv=f16]");
  const std::string model = argv[1], peer = argv[2];
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 4, threads = argc > 4 ? std::atoi(argv[4]) : 2;
  const std::string kv = argc > 5 ? argv[5] : "f16";
  const std::string self = (std::filesystem::path(argv[0]).parent_path().parent_path() / "kvasir").string();
  const std::string flags =
      fmt::format(" -m '{}' -p 512 -n 128 -r 2 -t {} -ctk {} -ctv {} -fa 1 -o json", model, threads, kv, kv);
  Rates ours, theirs;
  for (int round = 0; round < rounds; ++round) {
    add_rates("'" + self + "' bench" + flags, ours);
    add_rates("'" + peer + "'" + flags, theirs);
  }
  kvasir::ThreadPool pool(threads);
  const auto peak = kvasir::cpu::measure_roofline(pool, 2.0);
  fmt::print("{}, {} threads, {} cache; medians of tokens/s over {} interleaved rounds\n", std::filesystem::path(model).filename().string(),
             threads, kv, rounds);
  fmt::print("| test   |    kvasir | llama.cpp |  ratio | samples |\n| ------ | --------: | --------: | -----: | ------- |\n");
  print_row("pp512", ours, theirs, &Rates::prompt);
  print_row("tg128", ours, theirs, &Rates::generate);
  fmt::print("peaks of this run: {:.1f} GB/s read, {:.0f} int8 Gop/s, {:.0f} f32 Gflop/s\n", peak.read_gb_s, peak.int8_gops,
             peak.f32_gflops);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "peer: {}\n", error.what());
    return 1;
  }
}
