// Gemma 4 text decoder (E2B, E4B, 12B, 31B): research notes, section 1.
#include <cmath>

#include "models/builder.h"
#include "models/models.h"

namespace kvasir::models {

using graph::kNone;
using graph::Op;
using graph::OpKind;
using graph::RowSet;
using graph::ValueId;

namespace {

// Inputs of layers [first, first + n) from the token's own table and from the scaled embedding: [n * ple_dim].
ValueId per_layer_inputs(Builder& b, ValueId h, int first, int n) {
  const gguf::ModelConfig& c = b.config;
  const int64_t width = int64_t(c.ple_dim) * c.n_layer;
  const ValueId out = b.value("per_layer_inputs", n * c.ple_dim, b.rows_of(h));
  const graph::WeightId table = b.weight("per_layer_token_embd.weight", {width, c.n_vocab});
  const graph::WeightId projection = b.weight("per_layer_model_proj.weight", {c.n_embd, width});
  const graph::WeightId norm = b.weight("per_layer_proj_norm.weight", {c.ple_dim});
  Op& op = b.push(OpKind::per_layer_embed);
  op.in[0] = h;
  op.w = {table, projection, norm};
  op.scale = 1.0f / std::sqrt(float(c.n_embd));
  op.head_dim = c.ple_dim;
  op.offset = first * c.ple_dim;
  return op.out = out;
}

// y + RMS(proj(GELU(gate y) * inputs[column..])), times the layer's scale.
ValueId per_layer_block(Builder& b, int il, ValueId y, ValueId inputs, int column, float scale) {
  const gguf::ModelConfig& c = b.config;
  const ValueId gated =
      b.matmul("per_layer_gate", y, b.weight(Builder::block(il, "inp_gate"), {c.n_embd, c.ple_dim}));
  Op& gate = b.last();
  gate.act = graph::Activation::kGeluTanh;
  gate.in[2] = inputs;
  gate.offset = column;
  const ValueId projected =
      b.matmul("per_layer_proj", gated, b.weight(Builder::block(il, "proj"), {c.ple_dim, c.n_embd}));
  return b.norm("layer_out", projected, b.weight(Builder::block(il, "post_norm"), {c.n_embd}), y, scale);
}

}  // namespace

graph::Graph build_gemma4(const gguf::File& file, const gguf::ModelConfig& config) {
  Builder b(file, config);
  const int64_t n_embd = config.n_embd;
  ValueId h = b.embed(b.weight("token_embd.weight", {n_embd, config.n_vocab}), std::sqrt(float(n_embd)));
  const ValueId embedded = h;
  // Prompt rows go no further than the last layer that stores keys, and need the inputs of those layers only.
  int n_first = b.n_storing_layers();
  if (n_first * config.ple_dim % 32 != 0) n_first = config.n_layer;
  ValueId inputs = config.ple_dim > 0 ? per_layer_inputs(b, h, 0, n_first) : kNone;
  ValueId later_inputs = kNone;
  for (int il = 0; il < config.n_layer; ++il) {
    b.layer = il;
    const int64_t n_ff = config.layers[size_t(il)].n_ff;
    const float layer_scale = b.scalar(Builder::block(il, "layer_output_scale"), 1.0f);
    const ValueId o = b.attention_block(il, h, &inputs);
    if (config.ple_dim > 0 && il + 1 == n_first && n_first < config.n_layer)
      later_inputs = per_layer_inputs(b, b.select(embedded), n_first, config.n_layer - n_first);
    const ValueId x = b.norm("attn_residual", o, b.weight(Builder::block(il, "post_attention_norm"), {n_embd}), h);
    const ValueId n = b.norm("ffn_norm", x, b.weight(Builder::block(il, "ffn_norm"), {n_embd}));
    const ValueId g = b.gated_mlp("ffn_gated", n, b.weight(Builder::block(il, "ffn_gate"), {n_embd, n_ff}),
                                  b.weight(Builder::block(il, "ffn_up"), {n_embd, n_ff}));
    const ValueId f = b.matmul("ffn_out", g, b.weight(Builder::block(il, "ffn_down"), {n_ff, n_embd}));
    const bool ple = config.ple_dim > 0;
    h = b.norm(ple ? "ffn_residual" : "layer_out", f, b.weight(Builder::block(il, "post_ffw_norm"), {n_embd}), x,
               ple ? 1.0f : layer_scale);
    if (!ple) continue;
    const bool later = il >= n_first;
    h = per_layer_block(b, il, h, later ? later_inputs : inputs, (later ? il - n_first : il) * config.ple_dim,
                        layer_scale);
  }
  return b.finish(h);
}

}  // namespace kvasir::models
