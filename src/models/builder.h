// What the Gemma builders share: checked weights, values and the ops of one layer.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>

#include "gguf/file.h"
#include "gguf/model_config.h"
#include "graph/graph.h"

namespace kvasir::models {

class Builder {
 public:
  Builder(const gguf::File& file, const gguf::ModelConfig& config);

  // A weight of exactly this shape ({n_in, n_out}, or {n} for a vector); Error{kBadFile} otherwise.
  graph::WeightId weight(const std::string& name, std::initializer_list<int64_t> shape);
  // The same, or kNone when the file has no such tensor.
  graph::WeightId optional_weight(const std::string& name, std::initializer_list<int64_t> shape);
  // The first value of a small f32 tensor, or `fallback` when absent.
  float scalar(const std::string& name, float fallback) const;
  // A whole f32 tensor of n values; empty when absent.
  std::vector<float> vector(const std::string& name, int64_t n) const;

  graph::ValueId embed(graph::WeightId table, float scale);
  // (residual + RMS(x) * w) * scale; head_dim > 0 norms groups of that many values.
  graph::ValueId norm(const std::string& name, graph::ValueId x, graph::WeightId w, graph::ValueId residual = graph::kNone,
                      float scale = 1, int head_dim = 0);
  graph::ValueId matmul(const std::string& name, graph::ValueId x, graph::WeightId w);
  graph::ValueId gated_mlp(const std::string& name, graph::ValueId x, graph::WeightId gate, graph::WeightId up);
  graph::ValueId select(graph::ValueId x);

  // Attention block of layer il: norm, projections, cache, output projection. Returns the output projection. May move `h` (and
  // `extra`, when given) to the rows whose logits are wanted, once no later layer stores keys.
  graph::ValueId attention_block(int il, graph::ValueId& h, graph::ValueId* extra);
  // Final norm and logits; finishes the graph.
  graph::Graph finish(graph::ValueId h);

  graph::Op& push(graph::OpKind kind);
  graph::Op& last() { return graph_.ops.back(); }
  graph::ValueId value(std::string name, int width, graph::RowSet rows);
  graph::RowSet rows_of(graph::ValueId x) const { return graph_.values[size_t(x)].rows; }
  int width_of(graph::ValueId x) const { return graph_.values[size_t(x)].width; }
  static std::string block(int il, std::string_view tensor);  // "blk.3.attn_q.weight"

  const gguf::ModelConfig& config;
  int layer = -1;  // stamped on ops
  // Layers up to and including the last that stores keys; later ones run on output rows only.
  int n_storing_layers() const { return last_owner_ + 1; }

 private:
  int rope_index(const gguf::LayerConfig& layer);
  graph::WeightId balanced_norm(int il, const char* norm_name);

  const gguf::File& file_;
  graph::Graph graph_;
  std::vector<int> kv_of_layer_;
  std::vector<float> rope_factors_;
  int last_owner_ = -1;
};

}  // namespace kvasir::models
