// Gemma 3 text decoder (270M to 27B): research notes, section 2.
#include <cmath>

#include "models/builder.h"
#include "models/models.h"

namespace kvasir::models {

using graph::ValueId;

graph::Graph build_gemma3(const gguf::File& file, const gguf::ModelConfig& config) {
  Builder b(file, config);
  const int64_t n_embd = config.n_embd;
  ValueId h = b.embed(b.weight("token_embd.weight", {n_embd, config.n_vocab}), std::sqrt(float(n_embd)));
  for (int il = 0; il < config.n_layer; ++il) {
    b.layer = il;
    const int64_t n_ff = config.layers[size_t(il)].n_ff;
    const ValueId o = b.attention_block(il, h, nullptr);
    const ValueId x = b.norm("attn_residual", o, b.weight(Builder::block(il, "post_attention_norm"), {n_embd}), h);
    const ValueId n = b.norm("ffn_norm", x, b.weight(Builder::block(il, "ffn_norm"), {n_embd}));
    const ValueId g = b.gated_mlp("ffn_gated", n, b.weight(Builder::block(il, "ffn_gate"), {n_embd, n_ff}),
                                  b.weight(Builder::block(il, "ffn_up"), {n_embd, n_ff}));
    const ValueId f = b.matmul("ffn_out", g, b.weight(Builder::block(il, "ffn_down"), {n_ff, n_embd}));
    h = b.norm("layer_out", f, b.weight(Builder::block(il, "post_ffw_norm"), {n_embd}), x);
  }
  return b.finish(h);
}

}  // namespace kvasir::models
