// Norm and rope of every row of kernels that this device has, not only the best: through a graph, against double
// precision.
#include <algorithm>
#include <cmath>

#include "backends/registry/registry.h"
#include "base/cpu_features.h"
#include "verify/bounds.h"
#include "verify/checks/context.h"
#include "verify/reference/random.h"

namespace kvasir::verify {
namespace {

constexpr int kRows = 5, kHeads = 3;
constexpr int kPositions[kRows] = {0, 1, 511, 4096, 131071};
constexpr float kEps = 1e-6f;

// y = (residual + x / sqrt(mean(x^2) + eps) * w) * scale, and what single precision may be off by.
void norm_row(const float* x, const float* w, const float* residual, double scale, int n,
              std::vector<double>& want, std::vector<double>& bound) {
  double squares = 0;
  for (int i = 0; i < n; ++i) squares += double(x[i]) * double(x[i]);
  const double unit = 1 / std::sqrt(squares / n + double(kEps));
  for (int i = 0; i < n; ++i) {
    const double y = double(x[i]) * unit * (w ? double(w[i]) : 1), r = residual ? double(residual[i]) : 0;
    want.push_back((r + y) * scale);
    // The sum of squares, the root and its inverse, three products and a sum.
    bound.push_back(((sum_error(n) / 2 + 6 * kUnit) * std::fabs(y) + 2 * kUnit * (std::fabs(r) + std::fabs(y))) *
                        std::fabs(scale) +
                    0x1p-126);
  }
}

// Pairs (i, i + n_rot / 2) of a head turned by pos scale base^(-2 i / n_rot) / factor.
void turn(const graph::RopeSpec& rope, int pos, int d, std::vector<double>& y, std::vector<double>& bound) {
  const size_t at = y.size() - size_t(d), half = size_t(rope.n_rot / 2);
  for (size_t i = 0; i < half; ++i) {
    const double factor = rope.freq_factors.empty() ? 1 : double(rope.freq_factors[i]);
    const double angle = double(pos) * double(rope.scale) *
                         std::pow(double(rope.base), -2.0 * double(i) / rope.n_rot) / factor;
    double &a = y[at + i], &b = y[at + half + i];
    const double x = a, z = b, c = std::cos(angle), s = std::sin(angle);
    a = x * c - z * s;
    b = x * s + z * c;
    // Both inputs are off already; cosine and sine are rounded, and two products and a sum more.
    const double before = bound[at + i] + bound[at + half + i];
    bound[at + i] = bound[at + half + i] = before + 4 * kUnit * (std::fabs(x) + std::fabs(z));
  }
}

struct Bench {
  graph::Graph graph;
  std::vector<std::vector<float>> tables;

  graph::ValueId look_up(int width, uint64_t seed) {
    tables.push_back(reference::Gaussian(seed).vector(size_t(width) * kRows));
    graph::Op op;
    op.kind = graph::OpKind::embed;
    op.w[0] = weight(width, tables.back());
    op.out = value(width);
    graph.ops.push_back(op);
    return op.out;
  }
  graph::ValueId value(int width) {
    graph.values.push_back({"v" + std::to_string(graph.values.size()), width, graph::RowSet::kAll});
    return graph::ValueId(graph.values.size() - 1);
  }
  graph::WeightId weight(int width, const std::vector<float>& data) {
    graph.weights.push_back({"w" + std::to_string(graph.weights.size()), DType::f32, width,
                             int64_t(data.size()) / width, std::as_bytes(std::span(data)), -1});
    return graph::WeightId(graph.weights.size() - 1);
  }
  std::vector<float> run(backends::Backend& backend, graph::ValueId out) {
    backend.upload(graph, {}, {});
    backends::Decisions decisions;
    decisions.keep_values = true;
    const auto executable = backend.compile(graph, decisions, {}, kRows);
    std::vector<graph::Row> rows;
    for (int i = 0; i < kRows; ++i) rows.push_back({i, kPositions[i], 0, 0});
    const graph::SequenceView view;
    executable->submit({rows, {&view, 1}});
    const auto result = executable->inspect(out);
    return {result.begin(), result.end()};
  }
};

void check_norm(Context& context, backends::Backend& backend, bool residual, int width) {
  const std::string isa = backend.caps().isa;
  check(context, {"weights", fmt::format("norm{} of {} values, {}", residual ? " and sum" : "", width, isa), 0, "", ""},
        [&](decide::CheckResult& result) {
          Bench bench;
          bench.tables.reserve(3);
          const std::vector<float> w = reference::Gaussian(0x90).vector(size_t(width));
          const graph::ValueId x = bench.look_up(width, 0x91 + uint64_t(width)),
                               r = residual ? bench.look_up(width, 0x92) : graph::kNone;
          graph::Op op;
          op.kind = graph::OpKind::norm;
          op.layer = 0;
          op.in = {x, r, graph::kNone};
          op.w[0] = bench.weight(width, w);
          op.eps = kEps;
          op.scale = residual ? 0.75f : 1.0f;
          op.out = bench.value(width);
          bench.graph.ops.push_back(op);
          const std::vector<float> got = bench.run(backend, op.out);
          result.variant = "norm." + isa;
          Comparison whole;
          for (int i = 0; i < kRows; ++i) {
            std::vector<double> want, bound;
            const size_t at = size_t(i) * size_t(width);
            norm_row(bench.tables[0].data() + at, w.data(), residual ? bench.tables[1].data() + at : nullptr,
                     double(op.scale), width, want, bound);
            add(whole, compare(std::span(got).subspan(at, size_t(width)), want, bound));
          }
          conclude(result, whole);
        });
}

void check_rope(Context& context, backends::Backend& backend, int head_dim, bool part) {
  const std::string isa = backend.caps().isa;
  const Label label{"weights", fmt::format("rope{}, {}", part ? " of a half, factors" : "", isa), head_dim, "", ""};
  check(context, label, [&](decide::CheckResult& result) {
    Bench bench;
    bench.tables.reserve(2);
    const std::vector<float> w = reference::Gaussian(0x93).vector(size_t(head_dim));
    const graph::ValueId x = bench.look_up(kHeads * head_dim, 0x94 + uint64_t(head_dim));
    graph::RopeSpec rope{part ? 1e6f : 1e4f, part ? 0.125f : 1.0f, part ? head_dim / 2 : head_dim, {}};
    if (part)
      for (int i = 0; i < rope.n_rot / 2; ++i) rope.freq_factors.push_back(i % 3 ? 1.0f : 8.0f);
    bench.graph.ropes.push_back(rope);
    graph::Op op;
    op.kind = graph::OpKind::rope;
    op.layer = 0;
    op.in[0] = x;
    op.w[0] = bench.weight(head_dim, w);
    op.eps = kEps;
    op.n_head = kHeads;
    op.head_dim = head_dim;
    op.rope = 0;
    op.out = bench.value(kHeads * head_dim);
    bench.graph.ops.push_back(op);
    const std::vector<float> got = bench.run(backend, op.out);
    result.variant = "rope." + isa;
    Comparison whole;
    for (int i = 0; i < kRows * kHeads; ++i) {
      std::vector<double> want, bound;
      norm_row(bench.tables[0].data() + size_t(i) * size_t(head_dim), w.data(), nullptr, 1, head_dim, want, bound);
      turn(rope, kPositions[i / kHeads], head_dim, want, bound);
      add(whole, compare(std::span(got).subspan(size_t(i) * size_t(head_dim), size_t(head_dim)), want, bound));
    }
    conclude(result, whole);
  });
}

void check_rows_of(Context& context, backends::Backend& backend) {
  for (const bool residual : {false, true})
    for (const int width : {64, 224, 1536}) check_norm(context, backend, residual, width);
  for (const int head_dim : context.head_dims())
    for (const bool part : {false, true}) check_rope(context, backend, head_dim, part);
}

}  // namespace

void check_elementwise(Context& context) {
  check_rows_of(context, context.backend());
  // Rows that this CPU would not choose are there for others.
  if (context.caps().name != "cpu" || context.options().create || !context.options().isa.empty()) return;
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kNeon}) {
    if (!cpu_supports(isa) || isa_name(isa) == context.caps().isa) continue;
    const auto slower = backends::create_backend("cpu", 1, isa_name(isa));
    check_rows_of(context, *slower);
  }
}

}  // namespace kvasir::verify
