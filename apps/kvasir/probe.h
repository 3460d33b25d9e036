// What measurements are made of: small graphs run as steps through a backend's own route.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "formats/format.h"
#include "graph/graph.h"

namespace kvasir::app {

// Seconds of the quickest of at least `least` runs, and of as many as `budget` seconds hold: neighbours on a
// shared machine slow the others. The first run is not counted.
double quick_seconds(double budget, int least, const std::function<void()>& run);

std::vector<float> random_floats(size_t n);

// `n_rows` rows of `format` one after another; few are encoded, then repeated: what they hold does not matter
// for speed.
std::vector<std::byte> some_weights(const formats::Format& format, int width, int64_t n_rows);

// A graph under construction: look-ups give every op its input.
struct Draft {
  graph::Graph graph;
  std::vector<std::unique_ptr<std::vector<float>>> tables;

  graph::ValueId value(int width);
  graph::Op& push(graph::OpKind kind);
  graph::WeightId weight(DType type, int64_t n_in, int64_t n_out, std::span<const std::byte> data);
  graph::ValueId look_up(int width, int rows);
  graph::ValueId norm(graph::ValueId x);
  graph::ValueId matmul(graph::ValueId x, graph::WeightId w);
};

// A compiled draft and the small value that is read to wait for a step: a large one would be copied.
class Steps {
 public:
  Steps(backends::Backend& backend, Draft& draft, int max_rows, const backends::KvBuffers& kv = {});
  // Rows from position `first` on, one sequence.
  void run(int first, int n_rows, const graph::SequenceView& view = {});
  double seconds(double budget, int least);  // of max_rows rows

 private:
  backends::Backend& backend_;
  int max_rows_;
  graph::ValueId small_;
  std::unique_ptr<backends::Executable> executable_;
  std::vector<graph::Row> rows_;
};

// Starting and awaiting a step that does nothing.
double idle_seconds(backends::Backend& backend);

// An op of a chain of norms over `n_rows` rows of `width` values.
double norm_seconds(backends::Backend& backend, int width, int n_rows, double idle);

}  // namespace kvasir::app
