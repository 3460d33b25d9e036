#include "gguf/synth.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "formats/format.h"
#include "gguf/recipe.h"
#include "gguf/synth_vocabulary.h"
#include "gguf/writer.h"

namespace kvasir::gguf {
namespace {

constexpr float kWeightStd = 0.02f;
// Values encoded once a type; tensors are cut from them at random offsets. Small models need no more than a
// quarter.
constexpr int64_t kPoolValues = int64_t(1) << 20, kSmallPoolValues = kPoolValues / 4;
constexpr uint64_t kSmallModel = 1 << 26;  // parameters
constexpr uint64_t kRunBytes = 512 << 10;  // about what one cut takes

constexpr std::string_view kGemma3Template =
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else "
    "m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt "
    "%}<start_of_turn>model\n{% endif %}";
constexpr std::string_view kGemma4Template =
    "{{ bos_token }}{% for m in messages %}<|turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}";

// ---- keys

void write_general(Writer& out, const Geometry& g, const SynthOptions& options) {
  out.add_string("general.architecture", g.arch);
  out.add_string("general.type", "model");
  out.add_string("general.name", fmt::format("{} (random weights)", g.name));
  out.add_string("general.description",
                 fmt::format("random {} weights, seed {}: for measuring only", options.type, options.seed));
  const double millions = double(n_params(g)) / 1e6;
  out.add_string("general.size_label", millions < 1000 ? fmt::format("{:.0f}M", millions)
                                                       : fmt::format("{:.1f}B", millions / 1000));
  out.add_u32("general.file_type", find_recipe(options.type)->file_type);
  out.add_u32("general.quantization_version", 2);
}

// A number, or an array when layers differ.
void write_per_layer(Writer& out, const std::string& key, const std::vector<int32_t>& values) {
  if (std::ranges::all_of(values, [&](int32_t v) { return v == values[0]; }))
    return out.add_u32(key, uint32_t(values[0]));
  out.add_i32_array(key, values);
}

void write_gemma4(Writer& out, const Geometry& g, const std::string& arch) {
  std::vector<uint8_t> sliding;
  for (int il = 0; il < g.n_layer; ++il) sliding.push_back(!g.global(il));
  out.add_bool_array(arch + "attention.sliding_window_pattern", sliding);
  out.add_u32(arch + "attention.key_length_swa", uint32_t(g.head_dim_sliding));
  out.add_u32(arch + "attention.value_length_swa", uint32_t(g.head_dim_sliding));
  out.add_u32(arch + "attention.shared_kv_layers", uint32_t(g.n_shared));
  out.add_f32(arch + "rope.freq_base_swa", 1e4f);
  out.add_u32(arch + "rope.dimension_count", uint32_t(g.head_dim_global));
  out.add_u32(arch + "rope.dimension_count_swa", uint32_t(g.head_dim_sliding));
  out.add_f32(arch + "final_logit_softcapping", 30);
  out.add_u32(arch + "embedding_length_per_layer_input", uint32_t(g.ple_dim));
  if (g.n_expert == 0) return;
  out.add_u32(arch + "expert_count", uint32_t(g.n_expert));
  out.add_u32(arch + "expert_used_count", uint32_t(g.n_expert_used));
  out.add_u32(arch + "expert_feed_forward_length", uint32_t(g.n_ff_expert));
}

void write_model(Writer& out, const Geometry& g) {
  const std::string arch = std::string(g.arch) + ".";
  std::vector<int32_t> ff, kv;
  for (int il = 0; il < g.n_layer; ++il) {
    ff.push_back(g.ff(il));
    kv.push_back(g.n_kv(il));
  }
  out.add_u32(arch + "block_count", uint32_t(g.n_layer));
  out.add_u32(arch + "context_length", uint32_t(g.n_ctx));
  out.add_u32(arch + "embedding_length", uint32_t(g.n_embd));
  write_per_layer(out, arch + "feed_forward_length", ff);
  out.add_u32(arch + "attention.head_count", uint32_t(g.n_head));
  write_per_layer(out, arch + "attention.head_count_kv", kv);
  out.add_u32(arch + "attention.key_length", uint32_t(g.head_dim_global));
  out.add_u32(arch + "attention.value_length", uint32_t(g.head_dim_global));
  out.add_f32(arch + "attention.layer_norm_rms_epsilon", 1e-6f);
  out.add_u32(arch + "attention.sliding_window", uint32_t(g.window));
  out.add_f32(arch + "rope.freq_base", 1e6f);
  if (g.global_rope_factor != 1) {
    out.add_string(arch + "rope.scaling.type", "linear");
    out.add_f32(arch + "rope.scaling.factor", g.global_rope_factor);
  }
  if (g.gemma4()) write_gemma4(out, g, arch);
}

void write_vocabulary(Writer& out, const Geometry& g) {
  const SynthVocabulary vocabulary = synth_vocabulary(g);
  const auto add_strings = [&](const char* key, const std::vector<std::string>& strings) {
    out.add_string_array(key, std::vector<std::string_view>(strings.begin(), strings.end()));
  };
  out.add_string("tokenizer.ggml.model", g.gemma4() ? "gemma4" : "llama");
  if (!g.gemma4()) out.add_string("tokenizer.ggml.pre", "default");
  add_strings("tokenizer.ggml.tokens", vocabulary.tokens);
  out.add_f32_array("tokenizer.ggml.scores", vocabulary.scores);
  out.add_i32_array("tokenizer.ggml.token_type", vocabulary.types);
  if (g.gemma4()) add_strings("tokenizer.ggml.merges", vocabulary.merges);
  out.add_u32("tokenizer.ggml.bos_token_id", 2);
  out.add_u32("tokenizer.ggml.eos_token_id", 1);
  out.add_u32("tokenizer.ggml.unknown_token_id", 3);
  out.add_u32("tokenizer.ggml.padding_token_id", 0);
  out.add_bool("tokenizer.ggml.add_bos_token", true);
  out.add_bool("tokenizer.ggml.add_sep_token", false);
  out.add_bool("tokenizer.ggml.add_eos_token", false);
  out.add_bool("tokenizer.ggml.add_space_prefix", false);
  out.add_string("tokenizer.chat_template", g.gemma4() ? kGemma4Template : kGemma3Template);
}

// ---- data

// splitmix64, and values made from it by exact arithmetic: the same file from the same seed on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  float uniform() { return float(next() >> 40) * 0x1p-24f; }
  // Sum of twelve 16-bit uniforms: variance 1, tails to 6.
  float normal() {
    int64_t sum = 0;
    for (int i = 0; i < 3; ++i)
      for (uint64_t bits = next(), k = 0; k < 4; ++k, bits >>= 16) sum += int64_t(bits & 0xffff);
    return float(sum - 12 * 32768 + 6) * 0x1p-16f;
  }

 private:
  uint64_t state_;
};

class Filler {
 public:
  Filler(const Geometry& geometry, uint64_t seed)
      : gemma4_(geometry.gemma4()),
        n_pool_(n_params(geometry) < kSmallModel ? kSmallPoolValues : kPoolValues),
        random_(seed) {}

  void write(Writer& out, const SynthTensor& tensor) {
    const formats::Format& format = formats::require(tensor.type);
    if (tensor.shape.n_dims == 1) {
      const std::vector<float> values = vector_values(tensor);
      return out.data(std::as_bytes(std::span(values)));
    }
    const std::span<const std::byte> blocks = pool(format);
    const uint64_t n_blocks = blocks.size() / format.block_bytes, run = kRunBytes / format.block_bytes;
    for (uint64_t left = format.row_bytes(tensor.shape.count()) / format.block_bytes; left > 0;) {
      // Another offset and length each time, so that no two pages of the file are likely to be the same.
      const uint64_t start = random_.below(n_blocks);
      const uint64_t n = std::min({left, n_blocks - start, run / 2 + random_.below(run) + 1});
      out.data(blocks.subspan(start * format.block_bytes, n * format.block_bytes));
      left -= n;
    }
  }

 private:
  // Near 1, but for what keeps activations and attention scores in a trained model's range.
  float centre(std::string_view name) const {
    if (name.ends_with("layer_output_scale.weight")) return 0.9f;
    const bool qk = name.ends_with("attn_q_norm.weight") || name.ends_with("attn_k_norm.weight");
    return qk && gemma4_ ? 0.25f : 1.0f;  // Gemma 4 does not scale scores by the head size
  }

  std::vector<float> vector_values(const SynthTensor& tensor) {
    std::vector<float> values(size_t(tensor.shape.count()));
    if (tensor.name == "rope_freqs.weight") {  // the first quarter of a head's pairs turns, the rest stays
      for (size_t i = 0; i < values.size(); ++i) values[i] = i < values.size() / 4 ? 1.0f : 1e30f;
      return values;
    }
    for (float& value : values) value = centre(tensor.name) * (0.9f + 0.2f * random_.uniform());
    return values;
  }

  std::span<const std::byte> pool(const formats::Format& format) {
    std::vector<std::byte>& blocks = pools_[format.type];
    if (blocks.empty()) {
      std::vector<float> values(static_cast<size_t>(n_pool_));
      for (float& value : values) value = kWeightStd * random_.normal();
      blocks.resize(format.row_bytes(n_pool_));
      format.encode(values.data(), blocks.data(), n_pool_);
    }
    return blocks;
  }

  const bool gemma4_;
  const int64_t n_pool_;
  Random random_;
  std::map<DType, std::vector<std::byte>> pools_;
};

}  // namespace

void synthesize(const Geometry& geometry, const std::string& out, const SynthOptions& options) {
  const std::vector<SynthTensor> tensors = synth_tensors(geometry, options.type);
  Writer writer(out);
  write_general(writer, geometry, options);
  write_model(writer, geometry);
  write_vocabulary(writer, geometry);
  for (const SynthTensor& tensor : tensors) writer.add_tensor(tensor.name, tensor.type, tensor.shape);
  if (options.header_only) return writer.finish_header_only();
  writer.begin_data();
  Filler filler(geometry, options.seed);
  const double total = double(synth_bytes(geometry, options.type));
  double done = 0;
  for (const SynthTensor& tensor : tensors) {
    filler.write(writer, tensor);
    done += double(formats::require(tensor.type).row_bytes(tensor.shape.count()));
    if (options.progress) options.progress(float(done / total));
  }
  writer.finish();
}

}  // namespace kvasir::gguf
