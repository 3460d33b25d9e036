#include "models/builder.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "models/key_balance.h"

namespace kvasir::models {

using graph::kNone;
using graph::Op;
using graph::OpKind;
using graph::RowSet;
using graph::ValueId;
using graph::WeightId;

Builder::Builder(const gguf::File& file, const gguf::ModelConfig& model) : config(model), file_(file) {
  graph_.n_vocab = model.n_vocab;
  kv_of_layer_.assign(size_t(model.n_layer), -1);
  for (int il = 0; il < model.n_layer; ++il) {
    const gguf::LayerConfig& l = model.layers[size_t(il)];
    if (l.kv_donor >= 0) {
      kv_of_layer_[size_t(il)] = kv_of_layer_[size_t(l.kv_donor)];
      continue;
    }
    last_owner_ = il;
    kv_of_layer_[size_t(il)] = int(graph_.kv.size());
    graph_.kv.push_back({il, l.head_dim, l.n_kv, l.window, DType::f16, DType::f16});
    if (l.rope_factors && rope_factors_.empty()) rope_factors_ = vector("rope_freqs.weight", l.n_rot / 2);
  }
}

std::string Builder::block(int il, std::string_view tensor) { return fmt::format("blk.{}.{}.weight", il, tensor); }

WeightId Builder::optional_weight(const std::string& name, std::initializer_list<int64_t> shape) {
  return file_.find_tensor(name) ? weight(name, shape) : kNone;
}

WeightId Builder::weight(const std::string& name, std::initializer_list<int64_t> shape) {
  const gguf::TensorInfo& tensor = file_.require_tensor(name);
  Shape expected;
  expected.n_dims = int(shape.size());
  std::copy(shape.begin(), shape.end(), expected.ne.begin());
  if (!(tensor.shape == expected))
    fail(ErrorCode::kBadFile, "{}: tensor '{}' has shape {}; this model's keys call for {}", file_.path(), name,
         tensor.shape.text(), expected.text());
  const int source = int(&tensor - file_.tensors().data());
  for (size_t i = 0; i < graph_.weights.size(); ++i)
    if (graph_.weights[i].source == source) return WeightId(i);
  graph_.weights.push_back({name, tensor.type, expected.ne[0], expected.ne[1], tensor.data, source});
  return WeightId(graph_.weights.size() - 1);
}

std::vector<float> Builder::vector(const std::string& name, int64_t n) const {
  const gguf::TensorInfo* tensor = file_.find_tensor(name);
  if (!tensor) return {};
  if (tensor->type != DType::f32 || tensor->shape.count() != n)
    fail(ErrorCode::kBadFile, "{}: tensor '{}' has shape {} and type id {}; it must be f32 with {} values", file_.path(),
         name, tensor->shape.text(), uint32_t(tensor->type), n);
  std::vector<float> values(static_cast<size_t>(n));
  std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(float));
  return values;
}

// The norm of a layer's queries or keys with its share of the balance (key_balance.h).
WeightId Builder::balanced_norm(int il, const char* norm_name) {
  const gguf::LayerConfig& l = config.layers[size_t(il)];
  const WeightId plain = weight(block(il, norm_name), {l.head_dim});
  const int owner = l.kv_donor < 0 ? il : l.kv_donor;
  const auto is_f32 = [&](int layer_index, const char* name) {
    const gguf::TensorInfo* tensor = file_.find_tensor(block(layer_index, name));
    return tensor && tensor->type == DType::f32;
  };
  std::vector<std::vector<float>> queries;
  for (int i = owner; i < config.n_layer; ++i) {
    if (i != owner && config.layers[size_t(i)].kv_donor != owner) continue;
    if (!is_f32(i, "attn_q_norm")) return plain;
    queries.push_back(vector(block(i, "attn_q_norm"), l.head_dim));
  }
  if (!is_f32(owner, "attn_k_norm")) return plain;
  const std::vector<float> keys = vector(block(owner, "attn_k_norm"), l.head_dim);
  const std::vector<float> s = key_balance(keys, queries, graph_.ropes[size_t(rope_index(l))]);
  if (std::ranges::all_of(s, [](float x) { return x == 1; })) return plain;
  const bool of_keys = norm_name == std::string_view("attn_k_norm");
  std::vector<float> made = vector(block(il, norm_name), l.head_dim);
  for (size_t i = 0; i < made.size(); ++i) made[i] = of_keys ? made[i] / s[i] : made[i] * s[i];
  graph_.made.push_back(std::make_shared<const std::vector<float>>(std::move(made)));
  graph_.weights[size_t(plain)].data = std::as_bytes(std::span(*graph_.made.back()));
  graph_.weights[size_t(plain)].source = -1;
  return plain;
}

float Builder::scalar(const std::string& name, float fallback) const {
  const std::vector<float> values = vector(name, 1);
  return values.empty() ? fallback : values[0];
}

Op& Builder::push(OpKind kind) {
  Op op;
  op.kind = kind;
  op.layer = layer;
  op.eps = config.rms_eps;
  graph_.ops.push_back(op);
  return graph_.ops.back();
}

ValueId Builder::value(std::string name, int width, RowSet rows) {
  if (layer >= 0) name = fmt::format("{}.{}", name, layer);
  graph_.values.push_back({std::move(name), width, rows});
  return ValueId(graph_.values.size() - 1);
}

ValueId Builder::embed(WeightId table, float scale) {
  const ValueId out = value("embed", config.n_embd, RowSet::kAll);
  Op& op = push(OpKind::embed);
  op.w[0] = table;
  op.scale = scale;
  return op.out = out;
}

ValueId Builder::norm(const std::string& name, ValueId x, WeightId w, ValueId residual, float scale, int head_dim) {
  const ValueId out = value(name, width_of(x), rows_of(x));
  Op& op = push(OpKind::norm);
  op.in = {x, residual, kNone};
  op.w[0] = w;
  op.scale = scale;
  op.head_dim = head_dim;
  return op.out = out;
}

ValueId Builder::matmul(const std::string& name, ValueId x, WeightId w) {
  const ValueId out = value(name, int(graph_.weights[size_t(w)].n_out), rows_of(x));
  Op& op = push(OpKind::matmul);
  op.in[0] = x;
  op.w[0] = w;
  return op.out = out;
}

ValueId Builder::gated_mlp(const std::string& name, ValueId x, WeightId gate, WeightId up) {
  const ValueId out = value(name, int(graph_.weights[size_t(gate)].n_out), rows_of(x));
  Op& op = push(OpKind::gated_mlp);
  op.act = graph::Activation::kGeluTanh;
  op.in[0] = x;
  op.w = {gate, up, kNone};
  return op.out = out;
}

ValueId Builder::select(ValueId x) {
  const ValueId out = value(graph_.values[size_t(x)].name + ".selected", width_of(x), RowSet::kOutput);
  Op& op = push(OpKind::select_rows);
  op.in[0] = x;
  return op.out = out;
}

int Builder::rope_index(const gguf::LayerConfig& l) {
  graph::RopeSpec spec{l.rope_base, l.rope_scale, l.n_rot, {}};
  if (l.rope_factors) spec.freq_factors = rope_factors_;
  for (size_t i = 0; i < graph_.ropes.size(); ++i) {
    const graph::RopeSpec& r = graph_.ropes[i];
    if (r.base == spec.base && r.scale == spec.scale && r.n_rot == spec.n_rot && r.freq_factors == spec.freq_factors)
      return int(i);
  }
  graph_.ropes.push_back(std::move(spec));
  return int(graph_.ropes.size() - 1);
}

ValueId Builder::attention_block(int il, ValueId& h, ValueId* extra) {
  const gguf::LayerConfig& l = config.layers[size_t(il)];
  const int64_t n_embd = config.n_embd, hd = l.head_dim;
  const int rope = rope_index(l);
  const ValueId a = norm("attn_norm", h, weight(block(il, "attn_norm"), {n_embd}));

  const auto roped = [&](const std::string& name, ValueId x, const char* norm_name, int n_head) {
    const ValueId out = value(name, width_of(x), rows_of(x));
    const WeightId w = balanced_norm(il, norm_name);
    Op& op = push(OpKind::rope);
    op.in[0] = x;
    op.w[0] = w;
    op.n_head = n_head;
    op.head_dim = int(hd);
    op.rope = rope;
    return op.out = out;
  };

  const ValueId q_raw = matmul("q_raw", a, weight(block(il, "attn_q"), {n_embd, l.n_head * hd}));
  ValueId k_raw = kNone, v_raw = kNone;
  if (l.kv_donor < 0) {
    k_raw = matmul("k_raw", a, weight(block(il, "attn_k"), {n_embd, l.n_kv * hd}));
    v_raw = l.k_is_v ? k_raw : matmul("v_raw", a, weight(block(il, "attn_v"), {n_embd, l.n_kv * hd}));
  }
  ValueId q = roped("q", q_raw, "attn_q_norm", l.n_head);
  if (l.kv_donor < 0) {
    const ValueId k = roped("k", k_raw, "attn_k_norm", l.n_kv);
    const ValueId v = config.v_norm ? norm("v", v_raw, kNone, kNone, 1, int(hd)) : v_raw;
    Op& op = push(OpKind::kv_append);
    op.in = {k, v, kNone};
    op.kv = kv_of_layer_[size_t(il)];
  }
  if (il == last_owner_) {
    // No later layer stores keys: rows whose logits nobody wants have done their work.
    h = select(h);
    q = select(q);
    if (extra && *extra != kNone) *extra = select(*extra);
  }
  const ValueId mixed = value("attn", int(l.n_head * hd), rows_of(q));
  Op& op = push(OpKind::attention);
  op.in[0] = q;
  op.out = mixed;
  op.n_head = l.n_head;
  op.head_dim = int(hd);
  op.scale = config.attn_scale;
  op.kv = kv_of_layer_[size_t(il)];
  return matmul("attn_out", mixed, weight(block(il, "attn_output"), {l.n_head * hd, n_embd}));
}

graph::Graph Builder::finish(ValueId h) {
  layer = -1;
  const ValueId n = norm("output_norm", h, weight("output_norm.weight", {config.n_embd}));
  const bool untied = file_.find_tensor("output.weight") != nullptr;
  const WeightId head = weight(untied ? "output.weight" : "token_embd.weight", {config.n_embd, config.n_vocab});
  const ValueId out = value("logits", config.n_vocab, RowSet::kOutput);
  Op& op = push(OpKind::logits);
  op.in[0] = n;
  op.w[0] = head;
  op.softcap = config.logit_softcap;
  op.out = out;
  graph_.logits = out;
  return std::move(graph_);
}

}  // namespace kvasir::models
