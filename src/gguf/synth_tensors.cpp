// The tensors of a synthetic file: names and shapes of a geometry, types of a recipe.
#include "base/error.h"
#include "formats/format.h"
#include "gguf/recipe.h"
#include "gguf/synth.h"

namespace kvasir::gguf {
namespace {

class TensorList {
 public:
  explicit TensorList(const Geometry& geometry) : g_(geometry) {}

  std::vector<SynthTensor> build() {
    add("token_embd.weight", {g_.n_embd, g_.n_vocab});
    add("output_norm.weight", {g_.n_embd});
    if (g_.gemma4()) add("rope_freqs.weight", {g_.head_dim_global / 2});
    if (g_.ple_dim > 0) {
      const int64_t width = int64_t(g_.ple_dim) * g_.n_layer;
      add("per_layer_token_embd.weight", {width, g_.n_vocab});
      add("per_layer_model_proj.weight", {g_.n_embd, width});
      add("per_layer_proj_norm.weight", {g_.ple_dim});
    }
    for (int il = 0; il < g_.n_layer; ++il) layer(il);
    return std::move(tensors_);
  }

 private:
  void add(std::string name, std::initializer_list<int64_t> ne) {
    SynthTensor tensor{std::move(name), DType::f32, {}};
    tensor.shape.n_dims = int(ne.size());
    size_t d = 0;
    for (int64_t n : ne) tensor.shape.ne[d++] = n;
    tensors_.push_back(std::move(tensor));
  }

  void layer(int il) {
    const auto put = [&](const char* tensor, std::initializer_list<int64_t> ne) {
      add(fmt::format("blk.{}.{}", il, tensor), ne);
    };
    const int64_t embd = g_.n_embd, hd = g_.head_dim(il), ff = g_.ff(il), kv = g_.n_kv(il) * hd;
    put("attn_norm.weight", {embd});
    put("attn_q.weight", {embd, g_.n_head * hd});
    put("attn_q_norm.weight", {hd});
    if (!g_.shared(il)) {
      put("attn_k.weight", {embd, kv});
      put("attn_k_norm.weight", {hd});
      if (!(g_.k_is_v && g_.global(il))) put("attn_v.weight", {embd, kv});
    }
    put("attn_output.weight", {g_.n_head * hd, embd});
    put("post_attention_norm.weight", {embd});
    put("ffn_norm.weight", {embd});
    put("ffn_gate.weight", {embd, ff});
    put("ffn_up.weight", {embd, ff});
    put("ffn_down.weight", {ff, embd});
    put("post_ffw_norm.weight", {embd});
    if (g_.n_expert > 0) experts(il);
    if (g_.ple_dim > 0) {
      put("inp_gate.weight", {embd, g_.ple_dim});
      put("proj.weight", {g_.ple_dim, embd});
      put("post_norm.weight", {embd});
    }
    if (g_.gemma4()) put("layer_output_scale.weight", {1});
  }

  void experts(int il) {
    const auto put = [&](const char* tensor, std::initializer_list<int64_t> ne) {
      add(fmt::format("blk.{}.{}", il, tensor), ne);
    };
    put("ffn_gate_inp.weight", {g_.n_embd, g_.n_expert});
    put("ffn_gate_inp.scale", {g_.n_embd});
    put("pre_ffw_norm_2.weight", {g_.n_embd});
    put("post_ffw_norm_1.weight", {g_.n_embd});
    put("post_ffw_norm_2.weight", {g_.n_embd});
    put("ffn_gate_up_exps.weight", {g_.n_embd, 2 * g_.n_ff_expert, g_.n_expert});
    put("ffn_down_exps.weight", {g_.n_ff_expert, g_.n_embd, g_.n_expert});
    put("ffn_down_exps.scale", {g_.n_expert});
  }

  const Geometry& g_;
  std::vector<SynthTensor> tensors_;
};

// What a quantiser leaves alone comes as the converter writes it: the projection in 16 bits, everything else
// in 32.
DType unquantized_type(const SynthTensor& tensor, DType base) {
  if (tensor.name != "per_layer_model_proj.weight") return DType::f32;
  return base == DType::f32 || base == DType::f16 ? base : DType::bf16;
}

}  // namespace

std::vector<SynthTensor> synth_tensors(const Geometry& geometry, std::string_view type) {
  const Recipe* recipe = find_recipe(type);
  if (!recipe) fail(ErrorCode::kUsage, "unknown weight type '{}'; known: {}", type, recipe_names());
  std::vector<SynthTensor> tensors = TensorList(geometry).build();
  std::vector<RecipeTensor> asked;
  for (const SynthTensor& tensor : tensors) asked.push_back({tensor.name, tensor.shape});
  const RecipeModel model{geometry.n_layer, geometry.n_head, geometry.n_kv(0), geometry.n_shared,
                          geometry.n_expert};
  const auto types = assign_types(*recipe, model, asked);
  for (size_t i = 0; i < tensors.size(); ++i)
    tensors[i].type = types[i] ? *types[i] : unquantized_type(tensors[i], recipe->base);
  return tensors;
}

uint64_t synth_bytes(const Geometry& geometry, std::string_view type) {
  uint64_t total = 0;
  for (const SynthTensor& tensor : synth_tensors(geometry, type))
    total += formats::require(tensor.type).row_bytes(tensor.shape.count());
  return total;
}

uint64_t n_params(const Geometry& geometry) {
  uint64_t total = 0;
  for (const SynthTensor& tensor : synth_tensors(geometry, "f32"))
    if (tensor.name != "rope_freqs.weight") total += uint64_t(tensor.shape.count());
  return total;
}

}  // namespace kvasir::gguf
