#include "gguf/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "base/error.h"
#include "formats/format.h"
#include "gguf/writer.h"

namespace kvasir::gguf {

namespace {

constexpr float kWeightStd = 0.02f;
constexpr int64_t kPoolValues = int64_t(1) << 20;  // encoded once a type; tensors are cut from it at random offsets

// Which type a matrix of `row` values gets: mixes ask for a better type on some tensors, and k-quants need rows of 256.
DType fit(DType wanted, int64_t row) {
  if (row % formats::require(wanted).block == 0) return wanted;
  switch (wanted) {
    case DType::q4_k: return DType::q5_0;
    case DType::q5_k: return DType::q5_1;
    case DType::q6_k: return DType::q8_0;
    case DType::q2_k:
    case DType::q3_k: return DType::q4_0;
    case DType::iq4_xs: return DType::iq4_nl;
    default: return DType::f16;
  }
}

// The layers on which Q4_K_M and Q5_K_M spend more on attn_v and ffn_down.
bool more_bits(int i, int n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

class TensorList {
 public:
  TensorList(const Geometry& geometry, DType type) : g_(geometry), type_(type) {
    mixed_ = type == DType::q4_k || type == DType::q5_k;
  }

  std::vector<SynthTensor> build() {
    matrix("token_embd.weight", g_.n_embd, g_.n_vocab, true);
    vector("output_norm.weight", g_.n_embd);
    if (g_.gemma4()) vector("rope_freqs.weight", g_.head_dim_global / 2);
    if (g_.ple_dim > 0) {
      const int64_t width = int64_t(g_.ple_dim) * g_.n_layer;
      matrix("per_layer_token_embd.weight", width, g_.n_vocab, true);
      add("per_layer_model_proj.weight", DType::bf16, {g_.n_embd, width});
      vector("per_layer_proj_norm.weight", g_.ple_dim);
    }
    for (int il = 0; il < g_.n_layer; ++il) layer(il);
    return std::move(tensors_);
  }

 private:
  void add(std::string name, DType type, std::initializer_list<int64_t> ne) {
    SynthTensor tensor{std::move(name), type, {}};
    tensor.shape.n_dims = int(ne.size());
    std::copy(ne.begin(), ne.end(), tensor.shape.ne.begin());
    tensors_.push_back(std::move(tensor));
  }
  void matrix(std::string name, int64_t n_in, int64_t n_out, bool better = false) {
    add(std::move(name), fit(mixed_ && better ? DType::q6_k : type_, n_in), {n_in, n_out});
  }
  void vector(std::string name, int64_t n) { add(std::move(name), DType::f32, {n}); }

  void layer(int il) {
    const auto name = [&](const char* tensor) { return fmt::format("blk.{}.{}.weight", il, tensor); };
    const int64_t embd = g_.n_embd, hd = g_.head_dim(il), ff = g_.ff(il);
    const bool better = more_bits(il, g_.n_layer);
    for (const char* norm : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"}) vector(name(norm), embd);
    matrix(name("attn_q"), embd, g_.n_head * hd);
    vector(name("attn_q_norm"), hd);
    if (!g_.shared(il)) {
      matrix(name("attn_k"), embd, g_.n_kv(il) * hd);
      vector(name("attn_k_norm"), hd);
      if (!(g_.k_is_v && g_.global(il))) matrix(name("attn_v"), embd, g_.n_kv(il) * hd, better);
    }
    matrix(name("attn_output"), g_.n_head * hd, embd);
    matrix(name("ffn_gate"), embd, ff);
    matrix(name("ffn_up"), embd, ff);
    matrix(name("ffn_down"), ff, embd, better);
    if (g_.gemma4()) vector(name("layer_output_scale"), 1);
    if (g_.ple_dim > 0) {
      matrix(name("inp_gate"), embd, g_.ple_dim);
      matrix(name("proj"), g_.ple_dim, embd);
      vector(name("post_norm"), embd);
    }
    if (g_.n_expert > 0) experts(il);
  }

  void experts(int il) {
    const auto name = [&](const char* tensor) { return fmt::format("blk.{}.{}", il, tensor); };
    add(name("ffn_gate_inp.weight"), DType::f32, {g_.n_embd, g_.n_expert});
    vector(name("ffn_gate_inp.scale"), g_.n_embd);
    for (const char* norm : {"pre_ffw_norm_2.weight", "post_ffw_norm_1.weight", "post_ffw_norm_2.weight"})
      vector(name(norm), g_.n_embd);
    add(name("ffn_gate_up_exps.weight"), fit(type_, g_.n_embd), {g_.n_embd, 2 * g_.n_ff_expert, g_.n_expert});
    add(name("ffn_down_exps.weight"), fit(type_, g_.n_ff_expert), {g_.n_ff_expert, g_.n_embd, g_.n_expert});
    vector(name("ffn_down_exps.scale"), g_.n_expert);
  }

  const Geometry& g_;
  DType type_;
  bool mixed_;
  std::vector<SynthTensor> tensors_;
};

// ---- vocabulary ---------------------------------------------------------------------------------------------

constexpr int kFirstByteToken = 238;
constexpr const char* kSpace = "\xe2\x96\x81";  // U+2581

struct Words {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;  // GGUF token types: 1 normal, 2 unknown, 3 control, 6 byte
  std::vector<std::string> merges;
};

Words make_vocabulary(const Geometry& g) {
  Words w;
  const bool gemma4 = g.gemma4();
  const char* special[] = {"<pad>", "<eos>", "<bos>", "<unk>", "<mask>"};
  const auto put = [&](std::string text, int32_t type) {
    w.tokens.push_back(std::move(text));
    w.types.push_back(type);
  };
  for (int i = 0; i < 5; ++i) put(special[i], i == 3 ? 2 : 3);
  while (w.tokens.size() < 105) put(fmt::format("<unused{}>", w.tokens.size() - 5), 3);
  put(gemma4 ? "<|turn>" : "<start_of_turn>", 3);
  put(gemma4 ? "<turn|>" : "<end_of_turn>", 3);
  for (int n = 1; w.tokens.size() < kFirstByteToken; ++n) put(n == 1 ? "\n" : fmt::format("<filler{}>", n), 1);
  for (int byte = 0; byte < 256; ++byte) put(fmt::format("<0x{:02X}>", byte), 6);
  put(kSpace, 1);
  for (char c = '!'; c <= '~'; ++c) put(std::string(1, c), 1);
  for (char a = 'a'; a <= 'z'; ++a)
    for (char b = 'a'; b <= 'z'; ++b) {
      put({a, b}, 1);
      w.merges.push_back({a, ' ', b});
    }
  for (int n = 0; int(w.tokens.size()) < g.n_vocab; ++n) put(fmt::format("{}word{}", kSpace, n), 1);
  w.tokens.resize(size_t(g.n_vocab));
  w.types.resize(size_t(g.n_vocab));
  return w;
}

void write_vocabulary(Writer& out, const Geometry& g) {
  const Words w = make_vocabulary(g);
  const std::vector<std::string_view> tokens(w.tokens.begin(), w.tokens.end());
  const std::vector<std::string_view> merges(w.merges.begin(), w.merges.end());
  out.add_string("tokenizer.ggml.model", g.gemma4() ? "gemma4" : "llama");
  out.add_string_array("tokenizer.ggml.tokens", tokens);
  std::vector<float> scores(tokens.size());
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = g.gemma4() ? -1000.0f : -float(i);
  out.add_f32_array("tokenizer.ggml.scores", scores);
  out.add_i32_array("tokenizer.ggml.token_type", w.types);
  if (g.gemma4()) out.add_string_array("tokenizer.ggml.merges", merges);
  out.add_u32("tokenizer.ggml.padding_token_id", 0);
  out.add_u32("tokenizer.ggml.eos_token_id", 1);
  out.add_u32("tokenizer.ggml.bos_token_id", 2);
  out.add_u32("tokenizer.ggml.unknown_token_id", 3);
  out.add_bool("tokenizer.ggml.add_bos_token", true);
  out.add_bool("tokenizer.ggml.add_space_prefix", false);
}

// ---- keys ---------------------------------------------------------------------------------------------------

void write_keys(Writer& out, const Geometry& g, const SynthOptions& options) {
  const auto key = [&](const char* name) { return fmt::format("{}.{}", g.arch, name); };
  out.add_string("general.architecture", g.arch);
  out.add_string("general.name", fmt::format("{} (random weights)", g.name));
  out.add_string("general.description", fmt::format("random {} weights, seed {}: for measuring only", options.type, options.seed));
  out.add_u32(key("block_count"), uint32_t(g.n_layer));
  out.add_u32(key("context_length"), uint32_t(g.n_ctx));
  out.add_u32(key("embedding_length"), uint32_t(g.n_embd));
  std::vector<int32_t> ff, kv;
  std::vector<uint8_t> sliding;
  for (int il = 0; il < g.n_layer; ++il) {
    ff.push_back(g.ff(il));
    kv.push_back(g.n_kv(il));
    sliding.push_back(!g.global(il));
  }
  if (g.n_ff_shared > 0) out.add_i32_array(key("feed_forward_length"), ff);
  else out.add_u32(key("feed_forward_length"), uint32_t(g.n_ff));
  out.add_u32(key("attention.head_count"), uint32_t(g.n_head));
  if (g.n_kv_sliding != g.n_kv_global) out.add_i32_array(key("attention.head_count_kv"), kv);
  else out.add_u32(key("attention.head_count_kv"), uint32_t(g.n_kv_global));
  out.add_u32(key("attention.key_length"), uint32_t(g.head_dim_global));
  out.add_u32(key("attention.value_length"), uint32_t(g.head_dim_global));
  out.add_f32(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  out.add_u32(key("attention.sliding_window"), uint32_t(g.window));
  out.add_f32(key("rope.freq_base"), 1e6f);
  if (g.global_rope_factor != 1) {
    out.add_string(key("rope.scaling.type"), "linear");
    out.add_f32(key("rope.scaling.factor"), g.global_rope_factor);
  }
  if (!g.gemma4()) return;
  out.add_bool_array(key("attention.sliding_window_pattern"), sliding);
  out.add_u32(key("attention.key_length_swa"), uint32_t(g.head_dim_sliding));
  out.add_u32(key("attention.value_length_swa"), uint32_t(g.head_dim_sliding));
  out.add_u32(key("attention.shared_kv_layers"), uint32_t(g.n_shared));
  out.add_f32(key("rope.freq_base_swa"), 1e4f);
  out.add_u32(key("rope.dimension_count"), uint32_t(g.head_dim_global));
  out.add_u32(key("rope.dimension_count_swa"), uint32_t(g.head_dim_sliding));
  out.add_f32(key("final_logit_softcapping"), 30);
  out.add_u32(key("embedding_length_per_layer_input"), uint32_t(g.ple_dim));
  if (g.n_expert == 0) return;
  out.add_u32(key("expert_count"), uint32_t(g.n_expert));
  out.add_u32(key("expert_used_count"), uint32_t(g.n_expert_used));
  out.add_u32(key("expert_feed_forward_length"), uint32_t(g.n_ff_expert));
}

// ---- data ---------------------------------------------------------------------------------------------------

class Filler {
 public:
  explicit Filler(uint64_t seed) : random_(seed) {}

  void write(Writer& out, const SynthTensor& tensor) {
    if (tensor.shape.n_dims == 1) {
      const std::vector<float> values = vector_values(tensor);
      out.data(std::as_bytes(std::span(values)));
      return;
    }
    const formats::Format& format = formats::require(tensor.type);
    const std::vector<std::byte>& blocks = pool(format);
    uint64_t left = uint64_t(tensor.shape.count()) / format.block * format.block_bytes;
    while (left > 0) {
      // Another offset each time, so that no two runs of the file are the same bytes in the same place.
      const uint64_t n_blocks = blocks.size() / format.block_bytes;
      const uint64_t start = random_() % (n_blocks / 2) * format.block_bytes;
      const uint64_t n = std::min<uint64_t>(left, blocks.size() - start);
      out.data(std::span(blocks).subspan(start, n));
      left -= n;
    }
  }

 private:
  std::vector<float> vector_values(const SynthTensor& tensor) {
    std::vector<float> values(size_t(tensor.shape.count()));
    const auto is = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
    if (is("rope_freqs")) {  // the first quarter of the head turns, the rest stays: 64 ones, then 1e30
      for (size_t i = 0; i < values.size(); ++i) values[i] = i < values.size() / 4 ? 1.0f : 1e30f;
      return values;
    }
    const float centre = is("layer_output_scale") ? 0.9f : is("attn_q_norm") || is("attn_k_norm") ? 0.25f : 1.0f;
    std::uniform_real_distribution<float> near(centre * 0.9f, centre * 1.1f);
    for (float& value : values) value = near(random_);
    return values;
  }

  const std::vector<std::byte>& pool(const formats::Format& format) {
    std::vector<std::byte>& blocks = pools_[format.type];
    if (!blocks.empty()) return blocks;
    std::normal_distribution<float> normal(0, kWeightStd);
    std::vector<float> values(static_cast<size_t>(kPoolValues));
    for (float& value : values) value = normal(random_);
    blocks.resize(format.row_bytes(kPoolValues));
    format.encode(values.data(), blocks.data(), kPoolValues);
    return blocks;
  }

  std::mt19937_64 random_;
  std::map<DType, std::vector<std::byte>> pools_;
};

}  // namespace

std::vector<SynthTensor> synth_tensors(const Geometry& geometry, std::string_view type) {
  const formats::Format* format = formats::find(type);
  if (!format || !format->has_role(formats::kWeights))
    fail(ErrorCode::kUsage, "--type {}: not a weight type; known: {}", type, formats::names(formats::kWeights));
  return TensorList(geometry, format->type).build();
}

uint64_t synth_bytes(const Geometry& geometry, std::string_view type) {
  uint64_t total = 0;
  for (const SynthTensor& tensor : synth_tensors(geometry, type)) {
    const formats::Format& format = formats::require(tensor.type);
    total += uint64_t(tensor.shape.count()) / format.block * format.block_bytes;
  }
  return total;
}

void synthesize(const Geometry& geometry, const std::string& out, const SynthOptions& options) {
  const std::vector<SynthTensor> tensors = synth_tensors(geometry, options.type);
  Writer writer(out);
  write_keys(writer, geometry, options);
  write_vocabulary(writer, geometry);
  for (const SynthTensor& tensor : tensors) writer.add_tensor(tensor.name, tensor.type, tensor.shape);
  if (options.header_only) {
    writer.finish_header_only();
    return;
  }
  writer.begin_data();
  Filler filler(options.seed);
  const double total = double(synth_bytes(geometry, options.type));
  double done = 0;
  for (const SynthTensor& tensor : tensors) {
    filler.write(writer, tensor);
    const formats::Format& format = formats::require(tensor.type);
    done += double(tensor.shape.count()) / format.block * format.block_bytes;
    if (options.progress) options.progress(float(done / total));
  }
  writer.finish();
}

}  // namespace kvasir::gguf
