#include "backends/cpu/runtime/weights.h"

#include <algorithm>

#include "base/error.h"

namespace kvasir::cpu {
namespace {

using graph::Op;
using graph::OpKind;

struct Uses {
  bool matrix = false, vector = false, lookup = false;
};

std::vector<Uses> find_uses(const graph::Graph& graph) {
  std::vector<Uses> uses(graph.weights.size());
  const auto mark = [&](graph::WeightId w, bool Uses::*use) {
    if (w != graph::kNone) uses[size_t(w)].*use = true;
  };
  for (const Op& op : graph.ops) {
    switch (op.kind) {
      case OpKind::embed: mark(op.w[0], &Uses::lookup); break;
      case OpKind::norm:
      case OpKind::rope: mark(op.w[0], &Uses::vector); break;
      case OpKind::matmul:
      case OpKind::logits: mark(op.w[0], &Uses::matrix); break;
      case OpKind::gated_mlp:
        mark(op.w[0], &Uses::matrix);
        mark(op.w[1], &Uses::matrix);
        break;
      case OpKind::per_layer_embed:
        mark(op.w[0], &Uses::lookup);
        mark(op.w[1], &Uses::matrix);
        mark(op.w[2], &Uses::vector);
        break;
      case OpKind::kv_append:
      case OpKind::attention:
      case OpKind::select_rows: break;
    }
  }
  return uses;
}

// Source bytes packed between two drops: what a load holds twice.
constexpr size_t kSliceBytes = size_t(16) << 20;

void pack(const graph::Weight& weight, const MatmulVariant& variant, ThreadPool& pool,
          const backends::DropSource& drop, PackedMatrix& matrix) {
  matrix.variant = &variant;
  matrix.type = weight.type;
  matrix.n_in = weight.n_in;
  matrix.n_out = weight.n_out;
  matrix.data = AlignedBuffer(packed_bytes(variant, weight.n_in, weight.n_out));
  constexpr int64_t kPanelsPerTask = 4;
  const int64_t n_panels = matrix.n_panels();
  const size_t row_bytes = weight.data.size() / size_t(weight.n_out);
  const int64_t slice = std::max<int64_t>(kPanelsPerTask, int64_t(kSliceBytes / (row_bytes * kPanelRows)));
  for (int64_t first = 0; first < n_panels; first += slice) {
    const int64_t last = std::min(n_panels, first + slice);
    TaskCounter next;
    pool.run([&](int) {
      for (int64_t begin = first + next.take() * kPanelsPerTask; begin < last;
           begin = first + next.take() * kPanelsPerTask)
        pack_panels(variant, weight.data.data(), weight.n_in, weight.n_out, begin,
                    std::min(last, begin + kPanelsPerTask), matrix.data.data());
    });
    if (!drop) continue;
    graph::Weight done = weight;
    const size_t row_begin = size_t(first) * kPanelRows, row_end = size_t(std::min(weight.n_out, last * kPanelRows));
    done.data = weight.data.subspan(row_begin * row_bytes, (row_end - row_begin) * row_bytes);
    drop(done);
  }
}

}  // namespace

std::vector<PreparedWeight> prepare_weights(const graph::Graph& graph, Isa isa, ThreadPool& pool,
                                            const backends::DropSource& drop,
                                            const std::function<void(float)>& progress) {
  const std::vector<Uses> uses = find_uses(graph);
  double total = 1, done = 0;
  for (const graph::Weight& weight : graph.weights) total += double(weight.data.size());
  std::vector<PreparedWeight> prepared(graph.weights.size());
  for (size_t i = 0; i < prepared.size(); ++i) {
    const graph::Weight& weight = graph.weights[i];
    PreparedWeight& out = prepared[i];
    out.format = &formats::require(weight.type);
    out.n_in = weight.n_in;
    out.n_out = weight.n_out;
    if (uses[i].vector) {
      out.vector.resize(size_t(weight.n_in * weight.n_out));
      out.format->decode(weight.data.data(), out.vector.data(), int64_t(out.vector.size()));
    }
    if (uses[i].lookup) out.rows = weight.data;
    if (uses[i].matrix) {
      const MatmulVariant* variant = find_matmul(weight.type, isa);
      if (!variant)
        fail(ErrorCode::kRefused, "tensor '{}' has type {}, which has no matmul kernel on the CPU; supported: {}",
             weight.name, out.format->name, formats::names(formats::kWeights));
      pack(weight, *variant, pool, drop, out.matrix);
    }
    done += double(weight.data.size());
    if (progress) progress(float(done / total));
  }
  return prepared;
}

}  // namespace kvasir::cpu
