#include "gguf/model_config.h"

#include <cmath>

#include "base/error.h"

namespace kvasir::gguf {

namespace {

// Reads keys of one architecture: "attention.head_count" means "<arch>.attention.head_count".
class Keys {
 public:
  Keys(const File& file, std::string arch) : file_(file), arch_(std::move(arch)) {}

  std::string full(std::string_view key) const { return arch_ + "." + std::string(key); }
  const Value* find(std::string_view key) const { return file_.find(full(key)); }

  // An integer within [low, high]; `fallback` < low means the key must be there.
  int64_t integer(std::string_view key, int64_t low, int64_t high, int64_t fallback) const {
    const Value* value = find(key);
    if (!value) {
      if (fallback >= low) return fallback;
      file_.require(full(key));
    }
    return check(key, value->integer(), low, high);
  }

  // A number within [low, high]; `fallback` when absent.
  double number(std::string_view key, double low, double high, double fallback) const {
    const Value* value = find(key);
    const double x = value ? value->number() : fallback;
    if (!(x >= low && x <= high))
      fail(ErrorCode::kBadFile, "{}: key '{}' is {}; it must be {} to {}", file_.path(), full(key), x, low,
           high);
    return x;
  }

  // A scalar for every layer, or an array of one value a layer.
  std::vector<int64_t> per_layer(std::string_view key, int n_layer, int64_t low, int64_t high) const {
    const Value& value = file_.require(full(key));
    if (value.is_array() && value.count() != uint64_t(n_layer))
      fail(ErrorCode::kBadFile, "{}: key '{}' has {} entries; the model has {} layers", file_.path(),
           full(key), value.count(), n_layer);
    std::vector<int64_t> out;
    for (int il = 0; il < n_layer; ++il)
      out.push_back(check(key, value.integer(value.is_array() ? uint64_t(il) : 0), low, high));
    return out;
  }

  const File& file() const { return file_; }

 private:
  int64_t check(std::string_view key, int64_t value, int64_t low, int64_t high) const {
    if (value < low || value > high)
      fail(ErrorCode::kBadFile, "{}: key '{}' is {}; it must be {} to {}", file_.path(), full(key), value,
           low, high);
    return value;
  }
  const File& file_;
  std::string arch_;
};

constexpr int64_t kMaxWidth = int64_t(1) << 20;
constexpr int kDefaultPatternPeriod =
    6;  // gemma3 files carry no pattern: five sliding layers, then a global one

std::vector<bool> sliding_layers(const Keys& keys, const ModelConfig& config, int64_t window) {
  std::vector<bool> sliding(size_t(config.n_layer), false);
  if (window == 0) return sliding;
  const Value* pattern = keys.find("attention.sliding_window_pattern");
  if (pattern && pattern->is_array()) {
    if (pattern->count() != uint64_t(config.n_layer))
      fail(ErrorCode::kBadFile, "{}: key '{}' has {} entries; the model has {} layers", keys.file().path(),
           keys.full("attention.sliding_window_pattern"), pattern->count(), config.n_layer);
    for (int il = 0; il < config.n_layer; ++il) sliding[size_t(il)] = pattern->boolean(uint64_t(il));
    return sliding;
  }
  if (config.arch == "gemma4") keys.file().require(keys.full("attention.sliding_window_pattern"));
  const int64_t period = keys.integer("attention.sliding_window_pattern", 1, 1024, kDefaultPatternPeriod);
  for (int il = 0; il < config.n_layer; ++il) sliding[size_t(il)] = (il + 1) % period != 0;
  return sliding;
}

// A layer without its own cache reads the last owning layer of its kind. Published models end their owning
// layers with a sliding one, then a global one; a file in which the rule gives others is read differently
// elsewhere, so it is refused.
void share_kv(const Keys& keys, ModelConfig& config, int64_t n_shared) {
  const int first = config.n_layer - int(n_shared);
  const std::string key = keys.full("attention.shared_kv_layers");
  for (int il = first; il < config.n_layer; ++il) {
    LayerConfig& layer = config.layers[size_t(il)];
    const char* kind = layer.sliding ? "sliding" : "global";
    for (int donor = first - 1; donor >= 0 && layer.kv_donor < 0; --donor)
      if (config.layers[size_t(donor)].sliding == layer.sliding) layer.kv_donor = donor;
    if (layer.kv_donor < 0)
      fail(ErrorCode::kBadFile,
           "{}: key '{}' is {}: layer {} ({}) has no earlier layer of its kind to share with",
           keys.file().path(), key, n_shared, il, kind);
    if (layer.kv_donor != first - (layer.sliding ? 2 : 1))
      fail(ErrorCode::kBadFile, "{}: key '{}' is {}: {} layers would share with layer {}, layer {} is needed",
           keys.file().path(), key, n_shared, kind, layer.kv_donor, first - (layer.sliding ? 2 : 1));
    const LayerConfig& donor = config.layers[size_t(layer.kv_donor)];
    if (donor.head_dim != layer.head_dim || donor.n_kv != layer.n_kv)
      fail(ErrorCode::kBadFile,
           "{}: layer {} shares the cache of layer {}, which has {} KV heads of {} (it needs {} of {})",
           keys.file().path(), il, layer.kv_donor, donor.n_kv, donor.head_dim, layer.n_kv, layer.head_dim);
  }
}

struct Rope {
  double base, base_swa, factor;  // factor divides positions on global layers
};

Rope read_rope(const Keys& keys) {
  Rope rope{keys.number("rope.freq_base", 1, 1e12, 1e4), keys.number("rope.freq_base_swa", 1, 1e12, 1e4), 1};
  const Value* scaling = keys.find("rope.scaling.type");
  if (!scaling || scaling->string() == "none") return rope;
  if (scaling->string() != "linear")
    fail(ErrorCode::kRefused, "{}: key '{}': required: '{}'; supported: none, linear; missing: that scaling",
         keys.file().path(), keys.full("rope.scaling.type"), scaling->string());
  rope.factor = keys.number("rope.scaling.factor", 1e-3, 1e6, 1);
  return rope;
}

struct HeadDims {
  int64_t global, sliding;
};

HeadDims read_head_dims(const Keys& keys, const ModelConfig& config, int64_t n_head) {
  const int64_t key = keys.integer("attention.key_length", 1, 4096, config.n_embd / n_head);
  const int64_t value = keys.integer("attention.value_length", 1, 4096, key);
  const int64_t key_swa = keys.integer("attention.key_length_swa", 1, 4096, key);
  const int64_t value_swa = keys.integer("attention.value_length_swa", 1, 4096, key_swa);
  if (key != value || key_swa != value_swa)
    fail(ErrorCode::kRefused,
         "{}: required: key heads of {} and value heads of {} (sliding {} and {}); supported: equal sizes; "
         "missing: unequal "
         "head sizes",
         keys.file().path(), key, value, key_swa, value_swa);
  return {key, key_swa};
}

void read_layers(const Keys& keys, ModelConfig& config) {
  const int n = config.n_layer;
  const bool gemma4 = config.arch == "gemma4";
  const int64_t window = keys.integer("attention.sliding_window", 0, int64_t(1) << 30, 0);
  const std::vector<bool> sliding = sliding_layers(keys, config, window);
  const auto n_head = keys.per_layer("attention.head_count", n, 1, 4096);
  const auto n_kv =
      keys.find("attention.head_count_kv") ? keys.per_layer("attention.head_count_kv", n, 1, 4096) : n_head;
  const auto n_ff = keys.per_layer("feed_forward_length", n, 1, kMaxWidth);
  const HeadDims head_dims = read_head_dims(keys, config, n_head[0]);
  const Rope rope = read_rope(keys);
  for (int il = 0; il < n; ++il) {
    LayerConfig layer;
    layer.sliding = sliding[size_t(il)];
    layer.window = layer.sliding ? int(window) : 0;
    layer.n_head = int(n_head[size_t(il)]);
    layer.n_kv = int(n_kv[size_t(il)]);
    layer.head_dim = int(layer.sliding ? head_dims.sliding : head_dims.global);
    layer.n_ff = int(n_ff[size_t(il)]);
    layer.rope_base = float(layer.sliding ? rope.base_swa : rope.base);
    layer.rope_scale = layer.sliding ? 1.0f : float(1.0 / rope.factor);
    layer.n_rot = int(keys.integer(layer.sliding ? "rope.dimension_count_swa" : "rope.dimension_count", 2,
                                   layer.head_dim, layer.head_dim));
    layer.rope_factors = gemma4 && !layer.sliding && keys.file().find_tensor("rope_freqs.weight") != nullptr;
    if (layer.n_head % layer.n_kv != 0 || layer.n_rot % 2 != 0)
      fail(ErrorCode::kBadFile,
           "{}: layer {}: {} query heads over {} KV heads, {} rotary dimensions: the first must divide, the "
           "last be even",
           keys.file().path(), il, layer.n_head, layer.n_kv, layer.n_rot);
    config.layers.push_back(layer);
  }
  share_kv(keys, config, gemma4 ? keys.integer("attention.shared_kv_layers", 0, n - 1, 0) : 0);
  for (int il = 0; il < n; ++il) {
    LayerConfig& layer = config.layers[size_t(il)];
    layer.k_is_v =
        gemma4 && layer.kv_donor < 0 && !keys.file().find_tensor(fmt::format("blk.{}.attn_v.weight", il));
  }
}

std::string stem(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.size() > 5 && name.compare(name.size() - 5, 5, ".gguf") == 0) name.resize(name.size() - 5);
  return name;
}

}  // namespace

namespace {

// 1/sqrt(head size), but 1/sqrt(n_embd / n_head) for the 27B, the one Gemma 3 with heads of 128. No published
// file says so.
float gemma3_attn_scale(const Keys& keys, const ModelConfig& config) {
  const LayerConfig& layer = config.layers[0];
  const double width = layer.head_dim == 128 ? double(config.n_embd) / layer.n_head : double(layer.head_dim);
  return float(keys.number("attention.scale", 1e-6, 1e6, 1.0 / std::sqrt(width)));
}

}  // namespace

ModelConfig read_model_config(const File& file) {
  ModelConfig config;
  config.arch = file.string("general.architecture");
  if (config.arch != "gemma3" && config.arch != "gemma4")
    fail(ErrorCode::kRefused, "{}: required: architecture '{}'; supported: gemma3, gemma4; missing: '{}'",
         file.path(), config.arch, config.arch);
  const bool gemma4 = config.arch == "gemma4";
  const Keys keys(file, config.arch);
  const Value* name = file.find("general.name");
  config.name = name && name->type() == ValueType::string ? std::string(name->string()) : stem(file.path());
  config.n_expert = int(keys.integer("expert_count", 0, 65536, 0));
  if (config.n_expert > 0)
    fail(ErrorCode::kRefused,
         "{}: required: mixture of experts ({} experts); supported: dense models (gemma3, gemma4 E2B, E4B, "
         "12B, 31B); missing: "
         "expert routing (26B-A4B)",
         file.path(), config.n_expert);
  config.n_layer = int(keys.integer("block_count", 1, 1024, 0));
  config.n_embd = int(keys.integer("embedding_length", 1, kMaxWidth, 0));
  config.n_ctx_train = int(keys.integer("context_length", 1, int64_t(1) << 30, 0));
  config.rms_eps = float(keys.number("attention.layer_norm_rms_epsilon", 1e-12, 1, 1e-6));
  config.logit_softcap = float(keys.number("final_logit_softcapping", 0, 1e6, gemma4 ? 30.0 : 0.0));
  config.ple_dim = gemma4 ? int(keys.integer("embedding_length_per_layer_input", 0, kMaxWidth, 0)) : 0;
  config.v_norm = gemma4;
  const TensorInfo& embedding = file.require_tensor("token_embd.weight");
  if (embedding.shape.ne[0] != config.n_embd || embedding.shape.ne[1] > (int64_t(1) << 24))
    fail(ErrorCode::kBadFile, "{}: tensor 'token_embd.weight' has shape {}; rows of {} were expected",
         file.path(), embedding.shape.text(), config.n_embd);
  config.n_vocab = int(embedding.shape.ne[1]);
  read_layers(keys, config);
  if (!gemma4) config.attn_scale = gemma3_attn_scale(keys, config);
  return config;
}

}  // namespace kvasir::gguf
