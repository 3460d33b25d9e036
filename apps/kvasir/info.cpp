// kvasir info: what a model file holds and what it needs. Reads the header only: no weights, no tokenizer.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "command.h"
#include "decide/geometry.h"
#include "decide/memory_fit.h"
#include "formats/format.h"
#include "gguf/model_config.h"
#include "graph/kv_layout.h"
#include "options.h"

namespace kvasir::app {
namespace {

struct LayerClass {
  std::string name;
  gguf::LayerConfig shape;
  int layers = 0, owned = 0;
};

struct TypeTotal {
  int64_t tensors = 0, values = 0;
  uint64_t bytes = 0;
};

struct Info {
  std::shared_ptr<const gguf::File> file;
  gguf::ModelConfig config;
  int64_t n_params = 0;
  uint64_t size_bytes = 0;
  std::vector<LayerClass> classes;
  std::map<DType, TypeTotal> types;
  std::vector<graph::KvSpec> caches;
  std::vector<int> contexts;
};

bool same_shape(const gguf::LayerConfig& a, const gguf::LayerConfig& b) {
  return a.sliding == b.sliding && a.window == b.window && a.n_head == b.n_head && a.n_kv == b.n_kv &&
         a.head_dim == b.head_dim;
}

Info read_info(const std::string& path, const std::vector<int>& asked_contexts) {
  Info info;
  info.file = gguf::File::open(path);
  info.config = gguf::read_model_config(*info.file);
  for (const gguf::TensorInfo& tensor : info.file->tensors()) {
    TypeTotal& total = info.types[tensor.type];
    ++total.tensors;
    total.values += tensor.shape.count();
    total.bytes += tensor.data.size();
    info.n_params += tensor.shape.count();
    info.size_bytes += tensor.data.size();
  }
  for (size_t i = 0; i < info.config.layers.size(); ++i) {
    const gguf::LayerConfig& layer = info.config.layers[i];
    auto found =
        std::ranges::find_if(info.classes, [&](const LayerClass& c) { return same_shape(c.shape, layer); });
    if (found == info.classes.end())
      found = info.classes.insert(found, {layer.sliding ? "sliding" : "global", layer, 0, 0});
    ++found->layers;
    if (layer.kv_donor >= 0) continue;
    ++found->owned;
    info.caches.push_back({.layer = int(i),
                           .head_dim = layer.head_dim,
                           .n_kv = layer.n_kv,
                           .window = layer.sliding ? layer.window : 0,
                           .k_type = {},
                           .v_type = {}});
  }
  info.contexts = asked_contexts;
  if (info.contexts.empty()) {
    for (int n_ctx : {4096, 32768, 131072})
      if (n_ctx < info.config.n_ctx_train) info.contexts.push_back(n_ctx);
    info.contexts.push_back(info.config.n_ctx_train);
  }
  return info;
}

// Every type that this program's backend can keep keys and values in, widest first.
std::vector<const formats::Format*> cache_types() {
  std::vector<const formats::Format*> types;
  for (DType type : backend_caps().kv_types) {
    const formats::Format& format = formats::require(type);
    if (format.has_role(formats::kKeys) && format.has_role(formats::kValues)) types.push_back(&format);
  }
  std::ranges::stable_sort(types, std::greater<>(),
                           [](const formats::Format* f) { return f->bits_per_value(256); });
  return types;
}

std::vector<graph::KvSpec> with_type(std::vector<graph::KvSpec> caches, const formats::Format& format) {
  for (graph::KvSpec& cache : caches) cache.k_type = cache.v_type = format.type;
  return caches;
}

bool usable(const std::vector<graph::KvSpec>& caches, const formats::Format& format) {
  return std::ranges::all_of(
      caches, [&](const graph::KvSpec& cache) { return format.takes(cache.head_dim); });
}

uint64_t bytes_at(const Info& info, const formats::Format& format, int n_ctx) {
  return graph::kv_total_bytes(with_type(info.caches, format), n_ctx, decide::kHostMicroBatch, 1);
}

// Of a q8_0 cache at the largest context shown (decide/geometry.h).
uint64_t padded(const Info& info) {
  std::vector<int> head_dims;
  for (const gguf::LayerConfig& layer : info.config.layers) head_dims.push_back(layer.head_dim);
  return decide::padded_v_bytes(head_dims, with_type(info.caches, formats::require(DType::q8_0)),
                                *std::ranges::max_element(info.contexts), decide::kHostMicroBatch);
}

std::string type_name(DType type) {
  const formats::Format* format = formats::find(type);
  return format ? std::string(format->name) : fmt::format("id {}", uint32_t(type));
}

nlohmann::ordered_json to_json(const Info& info) {
  using Json = nlohmann::ordered_json;
  Json classes = Json::array(), tensors = Json::array(), kv_bytes = Json::object();
  for (const LayerClass& c : info.classes)
    classes.push_back({{"class", c.name},
                       {"layers", c.layers},
                       {"owned", c.owned},
                       {"n_head", c.shape.n_head},
                       {"n_kv", c.shape.n_kv},
                       {"head_dim", c.shape.head_dim},
                       {"window", c.shape.window}});
  for (const auto& [type, total] : info.types)
    tensors.push_back({{"type", type_name(type)},
                       {"tensors", total.tensors},
                       {"values", total.values},
                       {"bytes", total.bytes}});
  for (const formats::Format* format : cache_types()) {
    if (!usable(info.caches, *format)) continue;
    Json at = Json::object();
    for (int n_ctx : info.contexts) at[std::to_string(n_ctx)] = bytes_at(info, *format, n_ctx);
    const uint64_t per_token = graph::kv_bytes_per_token(with_type(info.caches, *format));
    kv_bytes[std::string(format->name)] = {{"per_token", per_token}, {"at", at}};
  }
  const gguf::ModelConfig& config = info.config;
  return {{"model",
           {{"arch", config.arch},
            {"name", config.name},
            {"n_params", info.n_params},
            {"size_bytes", info.size_bytes},
            {"n_layer", config.n_layer},
            {"n_ctx_train", config.n_ctx_train},
            {"n_embd", config.n_embd},
            {"n_vocab", config.n_vocab}}},
          {"classes", classes},
          {"tensors", tensors},
          {"kv_bytes", kv_bytes},
          {"padded_v_bytes", padded(info)}};
}

std::string memory_table(const Info& info) {
  std::string out = fmt::format("\nKV cache for one sequence (weights take {} more)\n  {:<10}{:>14}",
                                size_text(double(info.size_bytes)), "K and V", "a token");
  for (int n_ctx : info.contexts) out += fmt::format("{:>14}", fmt::format("-c {}", n_ctx));
  out += '\n';
  for (const formats::Format* format : cache_types()) {
    if (!usable(info.caches, *format)) continue;
    out += fmt::format("  {:<10}{:>14}", format->name,
                       size_text(double(graph::kv_bytes_per_token(with_type(info.caches, *format)))));
    for (int n_ctx : info.contexts)
      out += fmt::format("{:>14}", size_text(double(bytes_at(info, *format, n_ctx))));
    out += '\n';
  }
  return out;
}

std::string to_text(const Info& info) {
  const gguf::ModelConfig& config = info.config;
  std::string out = fmt::format(
      "{}\n  file       {} (GGUF v{})\n  arch       {}\n  size       {} parameters, {}, {:.2f} bits a "
      "weight\n",
      config.name, info.file->path(), info.file->version(), config.arch, count_text(double(info.n_params)),
      size_text(double(info.size_bytes)),
      8.0 * double(info.size_bytes) / double(std::max<int64_t>(info.n_params, 1)));
  out +=
      fmt::format("  shape      {} layers, {} wide, vocabulary {}\n  context    {} positions in training\n",
                  config.n_layer, config.n_embd, config.n_vocab, config.n_ctx_train);
  out += fmt::format("\nLayers\n  {:<10}{:>8}{:>9}{:>8}{:>10}{:>10}{:>9}\n", "class", "layers", "own KV",
                     "heads", "KV heads", "head size", "window");
  for (const LayerClass& c : info.classes)
    out +=
        fmt::format("  {:<10}{:>8}{:>9}{:>8}{:>10}{:>10}{:>9}\n", c.name, c.layers, c.owned, c.shape.n_head,
                    c.shape.n_kv, c.shape.head_dim, c.shape.window ? std::to_string(c.shape.window) : "all");
  out += fmt::format("\nTensors\n  {:<10}{:>8}{:>14}{:>14}\n", "type", "count", "values", "bytes");
  for (const auto& [type, total] : info.types)
    out += fmt::format("  {:<10}{:>8}{:>14}{:>14}\n", type_name(type), total.tensors,
                       count_text(double(total.values)), size_text(double(total.bytes)));
  return out + memory_table(info);
}

int info(const Args& args) {
  std::vector<int> contexts = args.integers("ctx-size");
  const Info read = read_info(model_path(args), contexts);
  print(args.on("json") ? to_json(read).dump(2) + "\n" : to_text(read));
  flush_out();
  return 0;
}

}  // namespace

Command info_command() {
  Command command;
  command.name = "info";
  command.summary = "what a model file holds and how much memory it needs";
  command.usage = "[options] -m MODEL";
  command.description =
      "Shows the geometry, the tensors by type, and the exact size of the KV cache for several contexts and "
      "storage types. "
      "Reads the header only, so it is quick on a file of any size.";
  command.flags = {
      {.names = "-m, --model",
       .argument = "FILE",
       .kind = Kind::kFile,
       .group = "Model",
       .help = "the model, a GGUF file (default the test model that comes with kvasir)"},
      {.names = "-c, --ctx-size",
       .argument = "LIST",
       .kind = Kind::kIntegers,
       .group = "Model",
       .help = "contexts to show, e.g. 8192,131072 (default 4096, 32768, 131072 and the model's own)",
       .min = 1,
       .max = 16777216},
      json_flag(),
      help_flag()};
  command.examples = {{"kvasir info -m gemma.gguf -c 16384,65536", "memory at two contexts"},
                      {"kvasir info -m gemma.gguf --json", "the same for programs"}};
  command.run = info;
  return command;
}

}  // namespace kvasir::app
