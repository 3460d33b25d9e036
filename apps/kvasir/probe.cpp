#include "probe.h"

#include <algorithm>
#include <chrono>
#include <random>

namespace kvasir::app {
namespace {

using Clock = std::chrono::steady_clock;
using graph::kPageTokens;

constexpr double kSliceSeconds = 0.03;  // of one figure
constexpr int kNormOps = 64;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double quick_seconds(double budget, int least, const std::function<void()>& run) {
  run();
  double best = 1e30;
  const auto begin = Clock::now();
  for (int i = 0; i < least || seconds_since(begin) < budget; ++i) {
    const auto start = Clock::now();
    run();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

std::vector<float> random_floats(size_t n) {
  constexpr size_t kDrawn = 16381;  // then they come again: no row of a matrix begins with the same one
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = i < kDrawn ? normal(rng) : x[i - kDrawn];
  return x;
}

std::vector<std::byte> some_weights(const formats::Format& format, int width, int64_t n_rows) {
  constexpr int64_t kPoolRows = 16;
  const size_t row_bytes = format.row_bytes(width);
  const std::vector<float> values = random_floats(size_t(kPoolRows) * size_t(width));
  std::vector<std::byte> pool(size_t(kPoolRows) * row_bytes), data(size_t(n_rows) * row_bytes);
  format.encode(values.data(), pool.data(), kPoolRows * width);
  for (int64_t row = 0; row < n_rows; row += kPoolRows)
    std::copy_n(pool.begin(), size_t(std::min(kPoolRows, n_rows - row)) * row_bytes,
                data.begin() + row * int64_t(row_bytes));
  return data;
}

graph::ValueId Draft::value(int width) {
  graph.values.push_back({"v" + std::to_string(graph.values.size()), width, graph::RowSet::kAll});
  return graph::ValueId(graph.values.size() - 1);
}

graph::Op& Draft::push(graph::OpKind kind) {
  graph::Op op;
  op.kind = kind;
  op.layer = 0;
  op.eps = 1e-6f;
  graph.ops.push_back(op);
  return graph.ops.back();
}

graph::WeightId Draft::weight(DType type, int64_t n_in, int64_t n_out, std::span<const std::byte> data) {
  graph.weights.push_back({"w" + std::to_string(graph.weights.size()), type, n_in, n_out, data, -1});
  return graph::WeightId(graph.weights.size() - 1);
}

graph::ValueId Draft::look_up(int width, int rows) {
  tables.push_back(std::make_unique<std::vector<float>>(random_floats(size_t(width) * size_t(rows))));
  const graph::WeightId w = weight(DType::f32, width, rows, std::as_bytes(std::span(*tables.back())));
  const graph::ValueId out = value(width);
  graph::Op& op = push(graph::OpKind::embed);
  op.w[0] = w;
  op.out = out;
  return out;
}

graph::ValueId Draft::norm(graph::ValueId x) {
  const graph::ValueId y = value(graph.values[size_t(x)].width);
  graph::Op& op = push(graph::OpKind::norm);
  op.in[0] = x;
  return op.out = y;
}

graph::ValueId Draft::matmul(graph::ValueId x, graph::WeightId w) {
  const graph::ValueId y = value(int(graph.weights[size_t(w)].n_out));
  graph::Op& op = push(graph::OpKind::matmul);
  op.in[0] = x;
  op.w[0] = w;
  return op.out = y;
}

Steps::Steps(backends::Backend& backend, Draft& draft, int max_rows, const backends::KvBuffers& kv)
    : backend_(backend), max_rows_(max_rows) {
  constexpr int kSmall = 32;
  small_ = draft.look_up(kSmall, kPageTokens);
  backend.upload(draft.graph, {}, {});
  executable_ = backend.compile(draft.graph, {}, kv, max_rows);
}

void Steps::run(int first, int n_rows, const graph::SequenceView& view) {
  rows_.clear();
  for (int i = 0; i < n_rows; ++i) rows_.push_back({i % kPageTokens, first + i, 0, 0});
  executable_->submit({rows_, {&view, 1}});
  executable_->inspect(small_);
}

double Steps::seconds(double budget, int least) {
  return quick_seconds(budget, least, [&] { run(0, max_rows_); });
}

double idle_seconds(backends::Backend& backend) {
  Draft draft;
  return Steps(backend, draft, 1).seconds(kSliceSeconds, 8);
}

double norm_seconds(backends::Backend& backend, int width, int n_rows, double idle) {
  Draft draft;
  graph::ValueId x = draft.look_up(width, kPageTokens);
  for (int i = 0; i < kNormOps; ++i) x = draft.norm(x);
  return std::max(Steps(backend, draft, n_rows).seconds(kSliceSeconds, 8) - idle, 1e-9) / (kNormOps + 1);
}

}  // namespace kvasir::app
