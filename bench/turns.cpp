// turns MODEL [turns=30] [tokens=8192] [ctx=16384] [k=q8_0] [v=k] [threads=2]: memory over a long
// conversation. Each turn brings `tokens` new tokens and makes 16 more; a full context drops its older half
// (a shift, which touches no key). Every tenth turn the session is saved and loaded again. Prints the resident
// memory and the heap in use after each turn, and fails when the process's own memory grows by more than 1 %,
// or its heap by more than 0.25 MiB, after the tenth: by then every buffer has been used to its full size.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/session.h"
#include "engine/state_io.h"
#include "formats/format.h"

namespace {

using namespace kvasir;

// Memory of the process in MiB by /proc/self/status: "RssAnon" is its own, "RssFile" pages of mapped files
// (the model's lookup tables) that the kernel may take back.
double status_mib(std::string_view field) {
  std::ifstream status("/proc/self/status");
  std::string word;
  double kib = 0;
  while (status >> word)
    if (word.size() == field.size() + 1 && word.starts_with(field) && status >> kib) return kib / 1024;
  return 0;
}

double heap_mib() {
  const struct mallinfo2 info = mallinfo2();
  return double(info.uordblks + info.hblkhd) / (1 << 20);
}

class Conversation {
 public:
  Conversation(engine::Session& session, int tokens) : session_(session), tokens_(size_t(tokens)) {}

  // Tokens of a turn, all different from turn to turn; then a short answer.
  void turn() {
    for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = text::Token(5 + (seed_ += 7919) % 1000);
    append(tokens_);
    for (int i = 0; i < 16; ++i) append(std::span(&next_, 1));
  }

  void save_and_load() {
    const std::string path = (std::filesystem::temp_directory_path() / "kvasir-turns.state").string();
    engine::save_state_file(session_, 0, path);
    engine::load_state_file(session_, 0, path);
    std::filesystem::remove(path);
  }

 private:
  void append(std::span<const text::Token> tokens) {
    const int room = session_.options().n_ctx - session_.size();
    if (int(tokens.size()) > room)
      session_.shift(0, 64, std::max(session_.size() / 2, int(tokens.size()) - room));
    session_.append(0, tokens, engine::Want::kLast, [&](int, std::span<const float> logits) {
      next_ = text::Token(std::ranges::max_element(logits) - logits.begin());
    });
  }

  engine::Session& session_;
  std::vector<text::Token> tokens_;
  text::Token next_ = 5;
  uint64_t seed_ = 0;
};

int run(int argc, char** argv) {
  const auto number = [&](int at, int fallback) { return argc > at ? std::atoi(argv[at]) : fallback; };
  if (argc < 2)
    fail(ErrorCode::kUsage,
         "usage: turns MODEL [turns=30] [tokens=8192] [ctx=16384] [k=q8_0] [v=k] [threads=2]");
  const int n_turns = number(2, 30), n_tokens = number(3, 8192);
  engine::LoadOptions load;
  load.path = argv[1];
  load.n_threads = number(7, 2);
  engine::SessionOptions options;
  options.n_ctx = number(4, 16384);
  if (n_turns < 11 || n_tokens < 1 || options.n_ctx < n_tokens + 256)
    fail(ErrorCode::kUsage, "turns must be at least 11, tokens at least 1, ctx at least tokens + 256");
  options.kv.k = formats::require(argc > 5 ? argv[5] : "q8_0", formats::kKeys).type;
  options.kv.v = argc > 6 ? formats::require(argv[6], formats::kValues).type : options.kv.k;
  engine::Session session(engine::Model::load(load), options);
  Conversation conversation(session, n_tokens);
  fmt::print("{} turns of {} tokens, context {}, keys {}, values {}, cache {:.1f} MiB\n", n_turns, n_tokens,
             options.n_ctx, formats::require(options.kv.k).name, formats::require(options.kv.v).name,
             double(session.kv_bytes()) / (1 << 20));
  fmt::print("turn  stored  own MiB  mapped file MiB  heap in use MiB  tokens/s\n");
  double own = 0, heap = 0;
  for (int turn = 1; turn <= n_turns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    conversation.turn();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (turn % 10 == 0) conversation.save_and_load();
    if (turn == 10) own = status_mib("RssAnon"), heap = heap_mib();
    fmt::print("{:>4}  {:>6}  {:>7.2f}  {:>15.2f}  {:>15.2f}  {:>8.0f}\n", turn, session.size(),
               status_mib("RssAnon"), status_mib("RssFile"), heap_mib(), (n_tokens + 16) / seconds);
    std::fflush(stdout);
  }
  const double grown = status_mib("RssAnon") / own - 1, heap_grown = heap_mib() - heap;
  fmt::print("since turn 10: own {:+.2f} %, heap in use {:+.2f} MiB\n", 100 * grown, heap_grown);
  return grown <= 0.01 && heap_grown <= 0.25 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const kvasir::Error& error) {
    fmt::print(stderr, "turns: {}\n", error.what());
    return int(error.code());
  }
}
