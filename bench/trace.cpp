// trace MODEL [rows] [depth] [kv type] [threads] [backend]: where the time of one step goes, op by op, with GB/s and Gop/s of the matmuls.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/error.h"
#include "engine/session.h"
#include "formats/format.h"

namespace {

using namespace kvasir;

struct Total {
  double seconds = 0, bytes = 0, flops = 0;
};

// "matmul:ffn_out.17" -> "matmul:ffn_out"
std::string without_layer(const std::string& op) { return op.substr(0, op.find_last_of('.')); }

int run(int argc, char** argv) {
  if (argc < 2) fail(ErrorCode::kUsage, "usage: trace MODEL [rows=512] [depth=0] [kv=f16] [threads=2] [backend=cpu]");
  const int n_rows = argc > 2 ? std::atoi(argv[2]) : 512;
  const int depth = argc > 3 ? std::atoi(argv[3]) : 0;
  engine::LoadOptions load;
  load.path = argv[1];
  load.n_threads = argc > 5 ? std::atoi(argv[5]) : 2;
  if (argc > 6) load.backend = argv[6];
  auto model = engine::Model::load(load);
  engine::SessionOptions options;
  options.n_ctx = depth + n_rows + 64;
  options.n_seq = 2;  // the second starts each repeat as a copy of the first
  options.n_ubatch = std::max(n_rows, std::min(512, options.n_ctx));
  options.kv.k = options.kv.v = formats::require(argc > 4 ? argv[4] : "f16", formats::kKeys).type;
  options.trace = true;
  engine::Session session(model, options);
  std::vector<text::Token> tokens(size_t(std::max(depth, n_rows)));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = text::Token(3 + i * 7919 % 1000);
  if (depth > 0) session.append(0, std::span(tokens).first(size_t(depth)), engine::Want::kNone, nullptr);
  std::map<std::string, Total> best;
  double best_total = 1e30;
  for (int repeat = 0; repeat < 5; ++repeat) {
    session.copy(0, 1);
    session.append(1, std::span(tokens).first(size_t(n_rows)), engine::Want::kLast, [](int, std::span<const float>) {});
    std::map<std::string, Total> totals;
    double sum = 0;
    for (const backends::TraceRow& row : session.trace()) {
      Total& t = totals[without_layer(row.op)];
      t.seconds += row.seconds;
      t.bytes += row.bytes;
      t.flops += row.flops;
      sum += row.seconds;
    }
    if (sum < best_total) {
      best_total = sum;
      best = totals;
    }
  }
  fmt::print("{} rows at depth {}: {:.2f} ms without the logits (best of 5)\n", n_rows, depth, best_total * 1e3);
  for (const auto& [op, t] : best)
    fmt::print("{:28} {:9.3f} ms {:5.1f} %  {:7.2f} GB/s {:8.1f} Gop/s\n", op, t.seconds * 1e3,
               100 * t.seconds / best_total, t.bytes / t.seconds * 1e-9, t.flops / t.seconds * 1e-9);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const kvasir::Error& error) {
    fmt::print(stderr, "trace: {}\n", error.what());
    return int(error.code());
  }
}
