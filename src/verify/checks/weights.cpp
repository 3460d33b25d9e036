// weights: a matrix of every weight type times rows of floats, in double precision over the weights as
// stored.
#include <cmath>

#include "verify/bounds.h"
#include "verify/checks/context.h"
#include "verify/reference/codec.h"
#include "verify/reference/random.h"

namespace kvasir::verify {
namespace {

constexpr int kIn = 512, kOut = 72, kMaxRows = 33;  // a panel and a part of one

struct Matrix {
  std::vector<std::byte> bytes;
  std::vector<double> stored;  // [kOut][kIn]
};

Matrix make_matrix(const formats::Format& format) {
  Matrix m;
  const size_t row_bytes = format.row_bytes(kIn);
  m.bytes.resize(row_bytes * kOut);
  m.stored.resize(size_t(kIn) * kOut);
  reference::Gaussian random(0x3e1 + uint64_t(format.type));
  const reference::Codec* codec = reference::find_codec(format.name);
  for (int o = 0; o < kOut; ++o) {
    const std::vector<float> row = random.vector(kIn, 0.05);
    std::byte* bytes = m.bytes.data() + size_t(o) * row_bytes;
    format.encode(row.data(), bytes, kIn);
    double* out = m.stored.data() + size_t(o) * kIn;
    if (codec) {
      codec->decode(bytes, kIn, out);
      continue;
    }
    std::vector<float> decoded(kIn);
    format.decode(bytes, decoded.data(), kIn);
    std::copy(decoded.begin(), decoded.end(), out);
  }
  return m;
}

graph::Graph make_graph(const formats::Format& format, const Matrix& matrix, const std::vector<float>& rows) {
  graph::Graph graph;
  graph.values = {{"x", kIn, graph::RowSet::kAll}, {"y", kOut, graph::RowSet::kAll}};
  graph.weights.resize(2);
  graph.weights[0] = {"x", DType::f32, kIn, int64_t(rows.size()) / kIn, std::as_bytes(std::span(rows)), -1};
  graph.weights[1] = {"w", format.type, kIn, kOut, matrix.bytes, -1};
  graph.ops.resize(2);
  graph.ops[0].kind = graph::OpKind::embed;
  graph.ops[0].w[0] = 0;
  graph.ops[0].out = 0;
  graph.ops[1].kind = graph::OpKind::matmul;
  graph.ops[1].w[0] = 1;
  graph.ops[1].in[0] = 0;
  graph.ops[1].out = 1;
  return graph;
}

// `halves`: weights and rows meet as f16.
Comparison compare_row(const formats::Format& format, const Matrix& matrix, bool halves, const float* x,
                       std::span<const float> y) {
  const double step = halves ? 0 : activation_step(format.type);
  std::vector<double> want, bound;
  for (int o = 0; o < kOut; ++o) {
    const double* w = matrix.stored.data() + size_t(o) * kIn;
    double sum = 0;
    ProductTerms terms;
    terms.n = kIn;
    for (int b = 0; b < kIn; b += 32) {
      double top = 0, energy = 0;
      for (int i = b; i < b + 32; ++i) {
        sum += w[i] * double(x[i]);
        terms.magnitude += std::fabs(w[i] * double(x[i]));
        top = std::max(top, std::fabs(double(x[i])));
        energy += w[i] * w[i];
        if (halves) terms.half_energy += w[i] * double(x[i]) * w[i] * double(x[i]);
      }
      terms.rounded_energy += top * step * top * step * energy;
    }
    want.push_back(sum);
    bound.push_back(product_bound(terms));
  }
  return compare(y, want, bound);
}

}  // namespace

void check_weights(Context& context) {
  for (const DType type : context.caps().weight_types) {
    const formats::Format& format = formats::require(type);
    const Matrix matrix = make_matrix(format);
    const std::vector<float> rows = reference::Gaussian(0xac7).vector(size_t(kIn) * kMaxRows);
    const graph::Graph graph = make_graph(format, matrix, rows);
    for (const int n : {1, 3, 8, kMaxRows})
      check(context,
            {"weights", fmt::format("{} times {} row{}", format.name, n, n == 1 ? "" : "s"), 0, "", ""},
            [&](decide::CheckResult& result) {
              backends::Backend& backend = context.backend();
              backend.upload(graph, {}, {});
              backends::Decisions decisions;
              decisions.keep_values = true;
              const auto executable = backend.compile(graph, decisions, {}, n);
              std::vector<graph::Row> step;
              for (int i = 0; i < n; ++i) step.push_back({kMaxRows - 1 - i, i, 0, 0});
              const graph::SequenceView sequence;
              executable->submit({step, {&sequence, 1}});
              const auto y = executable->inspect(1);
              result.variant = std::string(format.name) + "." + context.caps().isa;
              // CUDA multiplies prompts (more than 16 rows) on its matrix units.
              const bool halves = context.caps().name == "cuda" && n > 16;
              Comparison whole;
              for (int i = 0; i < n; ++i)
                add(whole,
                    compare_row(format, matrix, halves, rows.data() + size_t(step[size_t(i)].token) * kIn,
                                y.subspan(size_t(i) * kOut, kOut)));
              conclude(result, whole);
            });
  }
}

}  // namespace kvasir::verify
