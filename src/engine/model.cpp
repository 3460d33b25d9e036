#include "engine/model.h"

#include <algorithm>
#include <mutex>

#include "backends/registry/registry.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "engine/content_hash.h"
#include "formats/format.h"
#include "gguf/recipe.h"
#include "models/models.h"

namespace kvasir::engine {

using graph::OpKind;
using graph::RowSet;

struct Model::Impl {
  std::string path;
  std::shared_ptr<const gguf::File> file;
  gguf::ModelConfig config;
  std::unique_ptr<text::Tokenizer> tokenizer;
  text::ChatFamily family{};
  text::ChatOptions chat;
  std::string chat_note;
  graph::Graph graph;
  std::unique_ptr<backends::Backend> backend;
  bool has_weights = false;
  int n_threads = 1;
  Log log;
  std::once_flag hashed;
  std::string content_hash;
};

namespace {

text::Vocabulary read_vocabulary(const gguf::File& file, const gguf::ModelConfig& config) {
  text::Vocabulary v;
  const std::string_view kind = file.string("tokenizer.ggml.model");
  if (kind == "llama") {
    v.kind = text::TokenizerKind::kSpm;
  } else if (kind == "gemma4") {
    v.kind = text::TokenizerKind::kBpe;
  } else {
    fail(ErrorCode::kRefused, "{}: key 'tokenizer.ggml.model' is '{}'; supported: llama (Gemma 3), gemma4", file.path(),
         kind);
  }
  const gguf::Value& tokens = file.require("tokenizer.ggml.tokens");
  if (!tokens.is_array() || int64_t(tokens.count()) < config.n_vocab)
    fail(ErrorCode::kBadFile, "{}: key 'tokenizer.ggml.tokens' has {} entries; token_embd.weight has {} rows",
         file.path(), tokens.count(), config.n_vocab);
  const uint64_t n = tokens.count();
  v.tokens.reserve(n);
  for (uint64_t i = 0; i < n; ++i) v.tokens.push_back(tokens.string(i));
  const auto same_length = [&](const gguf::Value* value, std::string_view key) {
    if (value && value->count() != n)
      fail(ErrorCode::kBadFile, "{}: key '{}' has {} entries; tokenizer.ggml.tokens has {}", file.path(), key,
           value->count(), n);
    return value != nullptr;
  };
  const gguf::Value* types = file.find("tokenizer.ggml.token_type");
  if (same_length(types, "tokenizer.ggml.token_type"))
    for (uint64_t i = 0; i < n; ++i) v.types.push_back(text::TokenType(types->integer(i)));
  const gguf::Value* scores = file.find("tokenizer.ggml.scores");
  if (v.kind == text::TokenizerKind::kSpm && same_length(scores, "tokenizer.ggml.scores"))
    for (uint64_t i = 0; i < n; ++i) v.scores.push_back(float(scores->number(i)));
  if (const gguf::Value* merges = file.find("tokenizer.ggml.merges"); merges && v.kind == text::TokenizerKind::kBpe)
    for (uint64_t i = 0; i < merges->count(); ++i) v.merges.push_back(merges->string(i));
  v.bos = text::Token(file.integer_or("tokenizer.ggml.bos_token_id", 2));
  v.eos = text::Token(file.integer_or("tokenizer.ggml.eos_token_id", 1));
  v.unk = text::Token(file.integer_or("tokenizer.ggml.unknown_token_id", 3));
  v.pad = text::Token(file.integer_or("tokenizer.ggml.padding_token_id", 0));
  if (const gguf::Value* add = file.find("tokenizer.ggml.add_bos_token")) v.add_bos = add->boolean();
  return v;
}

}  // namespace

Model::Model() : impl_(std::make_unique<Impl>()) {}
Model::~Model() = default;

std::shared_ptr<Model> Model::load(const LoadOptions& options) {
  std::shared_ptr<Model> model(new Model());
  Impl& m = *model->impl_;
  m.path = options.path;
  m.log = options.log;
  m.n_threads = options.n_threads > 0 ? options.n_threads : cpu_count();
  m.file = gguf::File::open(options.path);
  m.config = gguf::read_model_config(*m.file);
  m.graph = models::build_graph(*m.file, m.config);
  m.tokenizer = text::Tokenizer::create(read_vocabulary(*m.file, m.config));
  const text::ChatFamily fallback = m.config.arch == "gemma3" ? text::ChatFamily::kGemma3 : text::ChatFamily::kGemma4;
  const gguf::Value* chat_template = m.file->find("tokenizer.chat_template");
  m.family = text::detect_family(chat_template ? chat_template->string() : std::string_view(), fallback, m.chat, m.chat_note);
  m.backend = backends::create_backend(options.backend, m.n_threads);
  if (options.load_weights) {
    if (options.before_upload) options.before_upload(*model);
    const auto drop = [&](const graph::Weight& weight) {
      if (weight.source < 0) return;
      gguf::TensorInfo part = m.file->tensors()[size_t(weight.source)];
      part.data = weight.data;
      m.file->drop(part);
    };
    m.backend->upload(m.graph, drop, options.progress);
    m.has_weights = true;
  }
  return model;
}

const std::string& Model::path() const { return impl_->path; }
const gguf::File& Model::file() const { return *impl_->file; }
const gguf::ModelConfig& Model::config() const { return impl_->config; }
const text::Tokenizer& Model::tokenizer() const { return *impl_->tokenizer; }
text::ChatFamily Model::chat_family() const { return impl_->family; }
const text::ChatOptions& Model::chat_options() const { return impl_->chat; }
const std::string& Model::chat_note() const { return impl_->chat_note; }
const graph::Graph& Model::graph() const { return impl_->graph; }
backends::Backend& Model::backend() const { return *impl_->backend; }
bool Model::has_weights() const { return impl_->has_weights; }
int Model::n_threads() const { return impl_->n_threads; }
const Log& Model::log() const { return impl_->log; }

const std::string& Model::content_hash() const {
  std::call_once(impl_->hashed, [&] { impl_->content_hash = engine::content_hash(*impl_->file, impl_->n_threads); });
  return impl_->content_hash;
}

int64_t Model::n_params() const {
  int64_t total = 0;
  for (const gguf::TensorInfo& tensor : impl_->file->tensors()) total += tensor.shape.count();
  return total;
}

uint64_t Model::weight_bytes() const {
  uint64_t total = 0;
  for (const gguf::TensorInfo& tensor : impl_->file->tensors()) total += tensor.data.size();
  return total;
}

std::string Model::description() const {
  const double params = double(n_params());
  const std::string size = params >= 1e9 ? fmt::format("{:.1f}B", params / 1e9) : fmt::format("{:.0f}M", params / 1e6);
  // The mix that the file says it is names it, as users know it; without one, the type of most of the matrix bytes.
  if (const gguf::Value* value = impl_->file->find("general.file_type"); value && !value->is_array())
    for (const gguf::Recipe& recipe : gguf::recipes())
      if (int64_t(recipe.file_type) == value->integer())
        return fmt::format("{} {} {}", impl_->config.arch, size, recipe.name);
  std::vector<std::pair<DType, uint64_t>> by_type;
  for (const graph::Weight& weight : impl_->graph.weights) {
    auto it = std::find_if(by_type.begin(), by_type.end(), [&](const auto& row) { return row.first == weight.type; });
    if (it == by_type.end()) it = by_type.insert(by_type.end(), {weight.type, 0});
    if (weight.name != "token_embd.weight" && weight.name != "per_layer_token_embd.weight")
      it->second += weight.data.size();
  }
  const auto largest = std::max_element(by_type.begin(), by_type.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  return fmt::format("{} {} {}", impl_->config.arch, size, formats::require(largest->first).name);
}

uint64_t Model::step_weight_bytes() const {
  uint64_t total = 0;
  for (const graph::Op& op : impl_->graph.ops) {
    const bool first = op.kind == OpKind::matmul || op.kind == OpKind::gated_mlp || op.kind == OpKind::logits;
    if (first) total += impl_->graph.weights[size_t(op.w[0])].data.size();
    if (op.kind == OpKind::gated_mlp) total += impl_->graph.weights[size_t(op.w[1])].data.size();
    if (op.kind != OpKind::per_layer_embed) continue;
    const graph::Weight& w = impl_->graph.weights[size_t(op.w[1])];  // the rows this op makes
    total += w.data.size() / uint64_t(w.n_out) * uint64_t(impl_->graph.values[size_t(op.out)].width);
  }
  return total;
}

namespace {
double matmul_flops(const graph::Graph& graph, bool prompt_rows_only) {
  double total = 0;
  const auto add = [&](graph::WeightId w, int n_out) { total += 2.0 * double(graph.weights[size_t(w)].n_in) * n_out; };
  for (const graph::Op& op : graph.ops) {
    if (op.kind != OpKind::matmul && op.kind != OpKind::gated_mlp && op.kind != OpKind::per_layer_embed) continue;
    if (prompt_rows_only && graph.values[size_t(op.out)].rows == RowSet::kOutput) continue;
    const int n_out = graph.values[size_t(op.out)].width;
    if (op.kind != OpKind::per_layer_embed) add(op.w[0], n_out);
    if (op.kind != OpKind::matmul) add(op.w[1], n_out);
  }
  return total;
}
}  // namespace

double Model::row_flops() const { return matmul_flops(impl_->graph, false); }
double Model::prompt_row_flops() const { return matmul_flops(impl_->graph, true); }
double Model::logits_flops() const {
  return 2.0 * double(impl_->config.n_embd) * double(impl_->config.n_vocab);
}

}  // namespace kvasir::engine
