#include "decide/geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/sha256.h"
#include "formats/format.h"
#include "gguf/model_config.h"
#include "gguf/synth.h"
#include "graph/kv_layout.h"

namespace kvasir::decide {
namespace {

constexpr size_t kSampleBytes = 4096;

bool is_lookup(std::string_view name) { return name == "per_layer_token_embd.weight"; }

// A layer of either source.
struct Layer {
  bool sliding, owns;
  int n_head, n_kv, head_dim, window;
};

void add_layer(ModelGeometry& g, int index, const Layer& l) {
  const auto same = [&](const LayerClass& c) {
    return (c.name == "sliding") == l.sliding && c.window == l.window && c.n_head == l.n_head &&
           c.n_kv == l.n_kv && c.head_dim == l.head_dim;
  };
  auto found = std::ranges::find_if(g.classes, same);
  if (found == g.classes.end())
    found = g.classes.insert(
        found, {l.sliding ? "sliding" : "global", 0, 0, l.n_head, l.n_kv, l.head_dim, l.window, 0});
  ++found->layers;
  found->prompt_layers += index + 1 < g.prompt_layers;
  g.head_dims.push_back(l.head_dim);
  if (!l.owns) return;
  ++found->owned;
  g.caches.push_back({.layer = index,
                      .head_dim = l.head_dim,
                      .n_kv = l.n_kv,
                      .window = l.window,
                      .k_type = {},
                      .v_type = {}});
}

int layer_of(std::string_view tensor) {
  int layer = -1;
  if (tensor.starts_with("blk.")) std::from_chars(tensor.data() + 4, tensor.data() + tensor.size(), layer);
  return layer;
}

std::string_view part_of(std::string_view name) {
  return name.starts_with("blk.") ? name.substr(name.find('.', 4) + 1) : name;
}

// The share of a matrix that every row of a prompt passes through.
double prompt_share(const ModelGeometry& g, std::string_view name) {
  if (name.starts_with("per_layer_model_proj")) return double(g.prompt_layers) / double(g.n_layer);
  const int layer = layer_of(name), last = g.prompt_layers - 1;
  if (layer < 0 || layer > last)
    return 0;  // the head, and layers without a cache of their own behind the last
  if (layer < last) return 1;
  const std::string_view part = part_of(name);
  return part == "attn_q.weight" || part == "attn_k.weight" || part == "attn_v.weight";
}

// `untied`: the head has a matrix of its own, so the token table is only looked up.
void add_tensor(ModelGeometry& g, std::string_view name, DType type, const Shape& shape, bool untied) {
  const uint64_t bytes = formats::require(type).row_bytes(shape.count());
  g.file_bytes += bytes;
  if (is_lookup(name)) g.table_bytes += bytes;
  if (shape.n_dims < 2 || is_lookup(name) || (untied && name == "token_embd.weight")) return;
  const bool experts = name.find("_exps.") != name.npos && g.n_expert > 0;
  const uint64_t read = experts ? bytes / uint64_t(g.n_expert) * uint64_t(g.n_expert_used) : bytes;
  auto found = std::ranges::find(g.step, type, &StepWeights::type);
  if (found == g.step.end()) found = g.step.insert(found, {.type = type});
  found->bytes += read;
  const double share = prompt_share(g, name);
  const std::string_view part = part_of(name);
  if (part != "attn_k.weight" && part != "attn_v.weight" && part != "ffn_up.weight")
    ++found->products, found->prompt_products += share;
  // Rows of a prompt reach every expert, each row its own few.
  found->prompt_bytes += uint64_t(share * double(bytes));
  found->prompt_values += uint64_t(share * double(shape.count()) * double(read) / double(bytes));
}

}  // namespace

uint64_t ModelGeometry::step_bytes() const {
  uint64_t total = 0;
  for (const StepWeights& part : step) total += part.bytes;
  return total;
}

int ModelGeometry::n_ops() const {
  // Every layer: norms, query, rope, attention, output, feed-forward; an owner also keys, values and the
  // append.
  return n_layer * (ple_dim > 0 ? 13 : 10) + int(caches.size()) * 5 + 6;
}

int ModelGeometry::n_prompt_ops() const {
  return prompt_layers * (ple_dim > 0 ? 13 : 10) + int(caches.size()) * 5;
}

uint64_t ModelGeometry::prompt_elementwise() const {
  uint64_t heads = 0;
  for (const LayerClass& c : classes)
    heads += uint64_t(c.prompt_layers) * uint64_t((2 * c.n_head + 4 * c.n_kv) * c.head_dim);
  return heads + uint64_t(prompt_layers) * uint64_t(4 * n_embd + 2 * n_ff + 3 * ple_dim);
}

uint64_t ModelGeometry::prompt_normed() const {
  return uint64_t(prompt_layers) * uint64_t(4 * n_embd + 3 * ple_dim);
}

int ModelGeometry::n_prompt_norms() const { return prompt_layers * (ple_dim > 0 ? 4 : 3); }

ModelGeometry read_geometry(const gguf::File& file) {
  const gguf::ModelConfig config = gguf::read_model_config(file);
  ModelGeometry g;
  g.name = config.name;
  g.arch = config.arch;
  g.fingerprint = fingerprint(file);
  g.n_layer = config.n_layer;
  g.n_embd = config.n_embd;
  g.n_vocab = config.n_vocab;
  g.n_ctx_train = config.n_ctx_train;
  g.ple_dim = config.ple_dim;
  g.n_expert = config.n_expert;
  g.n_expert_used = config.n_expert_used;
  for (int il = 0; il < config.n_layer; ++il)
    if (config.layers[size_t(il)].kv_donor < 0) g.prompt_layers = il + 1;
  for (int il = 0; il < config.n_layer; ++il) {
    const gguf::LayerConfig& l = config.layers[size_t(il)];
    g.n_ff = std::max(g.n_ff, l.n_ff);
    add_layer(g, il, {l.sliding, l.kv_donor < 0, l.n_head, l.n_kv, l.head_dim, l.sliding ? l.window : 0});
  }
  const bool untied = file.find_tensor("output.weight") != nullptr;
  for (const gguf::TensorInfo& t : file.tensors()) add_tensor(g, t.name, t.type, t.shape, untied);
  return g;
}

ModelGeometry published_geometry(const gguf::Geometry& source, std::string_view type) {
  ModelGeometry g;
  g.name = source.name;
  g.arch = source.arch;
  g.n_layer = source.n_layer;
  g.n_embd = source.n_embd;
  g.n_vocab = source.n_vocab;
  g.n_ctx_train = source.n_ctx;
  g.ple_dim = source.ple_dim;
  g.n_expert = source.n_expert;
  g.n_expert_used = source.n_expert_used;
  for (int il = 0; il < source.n_layer; ++il)
    if (!source.shared(il)) g.prompt_layers = il + 1;
  for (int il = 0; il < source.n_layer; ++il) {
    g.n_ff = std::max(g.n_ff, source.ff(il));
    const bool sliding = !source.global(il);
    add_layer(g, il,
              {sliding, !source.shared(il), source.n_head, source.n_kv(il), source.head_dim(il),
               sliding ? source.window : 0});
  }
  for (const gguf::SynthTensor& t : gguf::synth_tensors(source, type))
    add_tensor(g, t.name, t.type, t.shape, false);
  return g;
}

std::string fingerprint(const gguf::File& file) {
  std::string text;
  for (const gguf::KeyValue& pair : file.metadata()) {
    text += pair.key;
    const auto raw = pair.value.raw();
    text.append(reinterpret_cast<const char*>(raw.data()), std::min<size_t>(raw.size(), kSampleBytes));
  }
  for (const gguf::TensorInfo& t : file.tensors()) {
    text += fmt::format("\n{} {} {}\n", t.name, uint32_t(t.type), t.shape.text());
    const size_t n = std::min(t.data.size(), kSampleBytes);
    const auto middle = t.data.subspan((t.data.size() - n) / 2, n);
    text.append(reinterpret_cast<const char*>(middle.data()), n);
  }
  return sha256_hex(std::as_bytes(std::span(text))).substr(0, 32);
}

std::string types_text(const KvTypes& t) {
  const auto pair = [](DType k, DType v) {
    return fmt::format("{}/{}", formats::require(k).name, formats::require(v).name);
  };
  const bool differs = t.k_of(true) != t.k || t.v_of(true) != t.v;
  return pair(t.k, t.v) + (differs ? ", sliding " + pair(t.k_of(true), t.v_of(true)) : "");
}

std::string types_flags(const KvTypes& t) {
  const auto name = [](DType type) { return formats::require(type).name; };
  std::string text = fmt::format("-ctk {} -ctv {}", name(t.k), name(t.v));
  if (t.k_of(true) != t.k || t.v_of(true) != t.v)
    text += fmt::format(" --kv-swa {}:{}", name(t.k_of(true)), name(t.v_of(true)));
  return text;
}

std::vector<graph::KvSpec> typed_caches(const ModelGeometry& geometry, const KvTypes& types) {
  std::vector<graph::KvSpec> caches = geometry.caches;
  for (graph::KvSpec& cache : caches) {
    cache.k_type = types.k_of(cache.window > 0);
    cache.v_type = types.v_of(cache.window > 0);
    cache.exact_first = cache.window > 0 ? 0 : graph::kSinkTokens / graph::kPageTokens;
  }
  return caches;
}

uint64_t kv_bytes(const ModelGeometry& geometry, const KvTypes& types, int n_ctx, int n_ubatch) {
  return graph::kv_total_bytes(typed_caches(geometry, types), n_ctx, std::min(n_ubatch, n_ctx), 1);
}

uint64_t kv_bytes_per_token(const ModelGeometry& geometry, const KvTypes& types) {
  return graph::kv_bytes_per_token(typed_caches(geometry, types));
}

uint64_t padded_v_bytes(std::span<const int> head_dims, std::span<const graph::KvSpec> specs, int n_ctx,
                        int n_ubatch) {
  uint64_t padding = 0;
  for (const graph::KvSpec& spec : specs) {
    const int rows = std::min(n_ubatch, n_ctx), own = head_dims[size_t(spec.layer)];
    const uint64_t heads = uint64_t(spec.n_kv) * graph::kPageTokens,
                   pages = uint64_t(graph::kv_pages(spec, n_ctx, rows)),
                   exact = uint64_t(graph::kv_exact_pages(spec, n_ctx));
    // Keys and values by their wire rows, and as f16 in exact pages; what the allocator takes beyond is
    // padding.
    const auto side = [&](DType type, int head_dim) {
      const formats::Format& format = formats::require(type);
      return heads * (pages * format.row_bytes(head_dim) +
                      (format.open_page() ? exact * uint64_t(head_dim) * sizeof(uint16_t) : 0));
    };
    padding += graph::kv_total_bytes({&spec, 1}, n_ctx, rows, 1) - side(spec.k_type, spec.head_dim) -
               side(spec.v_type, own);
  }
  return padding;
}

std::string shape_problem(const ModelGeometry& geometry, const KvTypes& types) {
  for (const LayerClass& c : geometry.classes) {
    const bool sliding = c.name == "sliding";
    for (const DType type : {types.k_of(sliding), types.v_of(sliding)}) {
      const formats::Format& format = formats::require(type);
      if (!format.takes(c.head_dim))
        return fmt::format("{} takes {}; the {} layers have {}", format.name,
                           format.head_wide() ? std::string("head sizes 64, 128, 256, 512")
                                              : fmt::format("head sizes divisible by {}", format.block),
                           c.name, c.head_dim);
    }
  }
  return "";
}

}  // namespace kvasir::decide
