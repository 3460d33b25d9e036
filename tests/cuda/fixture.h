// A CUDA backend for tests, and graphs whose inputs are tables looked up by token.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backends/registry/registry.h"
#include "formats/format.h"
#include "graph/graph.h"

namespace kvasir::test {

// Why there is nothing to test here; empty when there is a device.
inline std::string no_cuda() {
  for (const backends::BackendStatus& status : backends::known_backends())
    if (status.name == "cuda" && !status.available) return "cuda: " + status.reason;
  return {};
}

#define KVASIR_NEEDS_CUDA() \
  if (const std::string why = no_cuda(); !why.empty()) GTEST_SKIP() << why

struct Table {
  std::vector<float> values;  // as the type decodes them
  std::vector<std::byte> bytes;
  graph::Weight weight;
};

// [n_out][n_in] of type `type`, values of the given spread.
inline std::unique_ptr<Table> make_table(const std::string& name, DType type, int n_in, int n_out,
                                         uint32_t seed, float spread = 1) {
  auto table = std::make_unique<Table>();
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  const formats::Format& format = formats::require(type);
  std::vector<float> row(static_cast<size_t>(n_in));
  table->values.resize(size_t(n_in) * size_t(n_out));
  table->bytes.resize(format.row_bytes(n_in) * size_t(n_out));
  for (int o = 0; o < n_out; ++o) {
    for (float& v : row) v = normal(random);
    std::byte* to = table->bytes.data() + format.row_bytes(n_in) * size_t(o);
    format.encode(row.data(), to, n_in);
    format.decode(to, table->values.data() + size_t(o) * size_t(n_in), n_in);
  }
  table->weight = {name, type, n_in, n_out, table->bytes, -1};
  return table;
}

// Graph under construction: inputs are embeddings of f32 tables, so that any row can be given.
struct SmallGraph {
  graph::Graph graph;
  std::vector<std::unique_ptr<Table>> tables;

  graph::WeightId add(std::unique_ptr<Table> table) {
    graph.weights.push_back(table->weight);
    tables.push_back(std::move(table));
    return graph::WeightId(graph.weights.size() - 1);
  }
  graph::ValueId value(const std::string& name, int width) {
    graph.values.push_back({name, width, graph::RowSet::kAll});
    return graph::ValueId(graph.values.size() - 1);
  }
  graph::ValueId input(const std::string& name, DType type, int width, int n_tokens, uint32_t seed,
                       float scale = 1) {
    graph::Op op;
    op.kind = graph::OpKind::embed;
    op.w[0] = add(make_table(name, type, width, n_tokens, seed));
    op.scale = scale;
    op.out = value(name, width);
    graph.ops.push_back(op);
    return op.out;
  }
};

inline double nmse(std::span<const float> got, std::span<const double> expected) {
  if (got.size() != expected.size()) return INFINITY;
  double error = 0, power = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = double(got[i]) - expected[i];
    if (!std::isfinite(d)) return INFINITY;
    error += d * d;
    power += expected[i] * expected[i];
  }
  return error / power;
}

}  // namespace kvasir::test
