// Graph -> nodes, memory plan.
#include <algorithm>
#include <cmath>

#include "backends/cuda/kernels/heads/heads.h"
#include "backends/cuda/kernels/weights/weights.h"
#include "backends/cuda/runtime/executable.h"
#include "backends/cuda/runtime/pages.h"
#include "base/error.h"
#include "formats/format.h"
#include "graph/kv_layout.h"

namespace kvasir::cuda {

using graph::kNone;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

namespace {

bool head_size_built(int d) { return d == 64 || d == 128 || d == 256 || d == 512; }

// Throws Error{kRefused} for keys, values or a head size that no kernel takes.
void check_kv(const graph::KvSpec& spec, int layer) {
  const formats::Format &k = formats::require(spec.k_type), &v = formats::require(spec.v_type);
  std::string missing;
  const auto miss = [&](std::string what) { missing += (missing.empty() ? "" : ", ") + what; };
  if (!kv_form(spec.k_type) || !k.has_role(formats::kKeys)) miss(fmt::format("keys of {}", k.name));
  if (!kv_form(spec.v_type) || !v.has_role(formats::kValues)) miss(fmt::format("values of {}", v.name));
  if (!head_size_built(spec.head_dim))
    miss(fmt::format("head size {}", spec.head_dim));
  else if (!k.takes(spec.head_dim) || !v.takes(spec.head_dim))
    miss(fmt::format("{} at head size {}", (k.takes(spec.head_dim) ? v : k).name, spec.head_dim));
  if (missing.empty()) return;
  const auto names = [](formats::Role role) {
    std::string out;
    for (const formats::Format& format : formats::all())
      if (kv_form(format.type) && format.has_role(role))
        out += (out.empty() ? "" : " ") + std::string(format.name) +
               (format.takes(64) ? "" : " (multiples of 128)");
    return out;
  };
  fail(ErrorCode::kRefused,
       "cuda attention, layer {}: required: keys {}, values {}, head size {}; supported: keys {}; values {}; "
       "head sizes 64, 128, 256, 512; missing: {}",
       layer, k.name, v.name, spec.head_dim, names(formats::kKeys), names(formats::kValues), missing);
}

constexpr size_t kExpandedValues = size_t(64) << 20;  // f16 weights a prompt matmul holds at a time
constexpr size_t kPageTileBytes = size_t(256)
                                  << 20;  // of encoded pages that a prompt holds as f16 tiles at a time
constexpr int kLogitsRows = 64;           // rows of logits computed at a time for many wanted rows

}  // namespace

CudaExecutable::CudaExecutable(const graph::Graph& graph, const DeviceWeights& weights,
                               const backends::Decisions& decisions, const backends::KvBuffers& kv,
                               int max_rows, cudaStream_t stream, std::string isa)
    : graph_(graph),
      weights_(weights),
      decisions_(decisions),
      kv_buffers_(kv),
      max_rows_(max_rows),
      stream_(stream),
      isa_(std::move(isa)) {
  const size_t n = graph_.values.size();
  consumers_.assign(n, 0);
  for (const Op& op : graph_.ops)
    for (ValueId v : op.in)
      if (v != kNone) ++consumers_[size_t(v)];
  int8_.assign(n, false);
  int8_one_.assign(n, false);
  value_data_.assign(n, nullptr);
  quant_.assign(n, {});
  groups_left_.assign(n, 0);
  shifted_.assign(n, nullptr);
  const size_t n_seq = size_t(std::max(1, decisions_.n_seq));
  rows_at_ = 16 + n_seq * sizeof(SequenceInfo);
  params_bytes_ = rows_at_ + size_t(max_rows_) * (sizeof(graph::Row) + sizeof(int32_t));
  for (Slot& slot : slots_) {
    slot.params_host = Memory(params_bytes_, Place::kHost, "allocating step parameters");
    slot.params = Memory(params_bytes_, Place::kDevice, "allocating step parameters");
    slot.outcome = Memory(16, Place::kHost, "allocating step parameters");
    check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "creating an event");
  }
  int n_pages = 64;
  for (int pages : kv_buffers_.n_pages) n_pages = std::max(n_pages, pages / int(n_seq) + 1);
  prepare_kv();
  prepare_ropes();
  build_nodes();
  plan_memory();
  allocate_scratch();
  size_attention();
  grow_tables(n_pages);
}

void CudaExecutable::prepare_kv() {
  const auto layer_of = [&](size_t kv, const graph::KvSpec& spec) {
    for (const Op& op : graph_.ops)
      if (op.kind == OpKind::attention && op.kv == int(kv)) return op.layer;
    return spec.layer;
  };
  for (size_t i = 0; i < graph_.kv.size(); ++i) {
    const graph::KvSpec& spec = graph_.kv[i];
    check_kv(spec, layer_of(i, spec));
    const auto k = kv_form(spec.k_type), v = kv_form(spec.v_type);
    KvView view;
    view.k_form = *k;
    view.v_form = *v;
    view.n_kv = spec.n_kv;
    view.head_dim = spec.head_dim;
    view.window = spec.window;
    view.exact_first = spec.exact_first;
    view.exact_last = spec.exact_last;
    view.pages = reinterpret_cast<uint8_t*>(kv_buffers_.data[i]);
    view.page_bytes = int64_t(graph::kv_page_bytes(spec));
    view.exact_page_bytes = int64_t(graph::kv_exact_page_bytes(spec));
    if (view.exact_page_bytes > 0) {
      if (i < kv_buffers_.exact.size()) view.exact = reinterpret_cast<uint8_t*>(kv_buffers_.exact[i]);
      if (i < kv_buffers_.n_exact.size()) view.n_exact = kv_buffers_.n_exact[i];
      const size_t pages = size_t(max_rows_ / graph::kPageTokens + 1);
      memory_.emplace_back(pages * size_t(view.exact_page_bytes), Place::kDevice,
                           "allocating open cache pages");
      view.step_exact = memory_.back().as<uint8_t>();
    }
    view.tables = upload_kv_tables(spec, memory_);
    kv_.push_back(view);
  }
  for (const bool search : {false, true}) {
    std::vector<EncodeView> open;
    EncodeViews& to = open_kv_[search];
    for (size_t i = 0; i < kv_.size(); ++i) {
      const KvView& view = kv_[i];
      if (!open_page(view.k_form) && !open_page(view.v_form)) continue;
      if ((slow_to_encode(view.k_form) || slow_to_encode(view.v_form)) != search) continue;
      open.push_back({view, layer_of(i, graph_.kv[i])});
      to.max_kv = std::max(to.max_kv, view.n_kv);
    }
    to.n = int(open.size());
    if (open.empty()) continue;
    memory_.emplace_back(open.size() * sizeof(EncodeView), Place::kDevice, "allocating cache views");
    to.views = memory_.back().as<EncodeView>();
    memory_.back().fill(open.data(), open.size() * sizeof(EncodeView), "uploading cache views");
  }
}

void CudaExecutable::prepare_ropes() {
  constexpr float kNeverTurns = 1e15f;  // files mark untouched pairs with a factor of 1e30
  for (const graph::RopeSpec& spec : graph_.ropes) {
    std::vector<double> frequency;
    int n_pairs = 0;
    for (int i = 0; i < spec.n_rot / 2; ++i) {
      const float factor = spec.freq_factors.empty() ? 1.0f : spec.freq_factors[size_t(i)];
      const bool turns = factor < kNeverTurns;
      frequency.push_back(turns ? std::pow(double(spec.base), -2.0 * i / spec.n_rot) * spec.scale / factor
                                : 0.0);
      if (turns) n_pairs = i + 1;
    }
    const size_t bytes = size_t(std::max(n_pairs, 1)) * sizeof(double);
    memory_.emplace_back(bytes, Place::kDevice, "allocating rope tables");
    memory_.back().fill(frequency.data(), size_t(n_pairs) * sizeof(double), "uploading rope frequencies");
    RopeTableArgs args;
    args.frequency = memory_.back().as<double>();
    args.n_pairs = n_pairs;
    args.max_rows = max_rows_;
    memory_.emplace_back(size_t(max_rows_) * 4 * size_t(std::max(n_pairs, 1)) * sizeof(float), Place::kDevice,
                         "allocating rope tables");
    args.turns = memory_.back().as<float>();
    ropes_.push_back(args);
  }
}

void CudaExecutable::add_node(std::string name, int layer, std::vector<ValueId> touches,
                              std::function<void(const Rows&)> run) {
  nodes_.push_back({std::move(name), layer, std::move(touches), std::move(run)});
}

bool CudaExecutable::feeds_int8(ValueId v) const {
  return std::ranges::any_of(graph_.ops, [&](const Op& op) {
    const bool product = op.kind == OpKind::matmul || op.kind == OpKind::gated_mlp ||
                         op.kind == OpKind::logits || op.kind == OpKind::per_layer_embed;
    if (!product || op.in[0] != v) return false;
    return wants_int8(weights_.matrices[size_t(op.w[op.kind == OpKind::per_layer_embed ? 1 : 0])].form);
  });
}

QuantRows CudaExecutable::quantized(ValueId v, const Rows& rows) const {
  const int n = rows.of(set_of(v));
  const bool wanted = n == 1 ? int8_one_[size_t(v)] : n > 0 && n <= kMaxMatvecRows && int8_[size_t(v)];
  return wanted ? quant_[size_t(v)] : QuantRows{};
}

void CudaExecutable::need_int8(ValueId v) {
  if (int8_[size_t(v)] || !feeds_int8(v)) return;
  int8_[size_t(v)] = true;
  add_node("quantize", -1, {v}, [this, v](const Rows& rows) {
    if (const QuantRows to = quantized(v, rows); to.q)
      quantize_rows(next(), data(v), width(v), rows.of(set_of(v)), to);
  });
}

size_t CudaExecutable::add_norm(size_t at) {
  const Op& op = graph_.ops[at];
  NormArgs args;
  args.w = op.w[0] == kNone ? nullptr : weights_.vectors[size_t(op.w[0])];
  args.scale = op.scale;
  args.eps = op.eps;
  args.n = width(op.out);
  const Op* second = at + 1 < graph_.ops.size() ? &graph_.ops[at + 1] : nullptr;
  if (second && (second->kind != OpKind::norm || second->head_dim != 0 || second->in[0] != op.out ||
                 second->in[1] != kNone || second->scale != 1 || second->w[0] == kNone))
    second = nullptr;
  const ValueId last = second ? second->out : op.out;
  if (second) {
    args.w_second = weights_.vectors[size_t(second->w[0])];
    args.eps_second = second->eps;
  }
  int8_[size_t(last)] = feeds_int8(last);
  const NormNode node{args, op.in[0], op.in[1], op.out, second ? second->out : kNone, nodes_.size()};
  norms_[last] = node;
  add_node(graph_.values[size_t(last)].name, op.layer, {node.x, node.residual, node.out, node.second},
           [this, last](const Rows& rows) {
             const NormNode& norm = norms_.at(last);
             const int n = rows.of(set_of(norm.out));
             if (n == 0 || (n == 1 && norm.fused)) return;
             norm_rows(next(), norm_args(norm, rows), n);
           });
  return second ? 2 : 1;
}

// A norm of heads, or a rope.
CudaExecutable::HeadsNode::Made CudaExecutable::make_heads(const Op& op) const {
  HeadsNode::Made m{HeadJob{}, op.in[0], op.out, false};
  m.job.n_head = width(op.out) / op.head_dim;
  m.job.w = op.w[0] == kNone ? nullptr : weights_.vectors[size_t(op.w[0])];
  m.job.norm = true;
  m.job.eps = op.eps;
  m.job.scale = op.scale;
  m.job.output_rows = set_of(op.out) == graph::RowSet::kOutput;
  if (op.kind == OpKind::rope) {
    const RopeTableArgs& rope = ropes_[size_t(op.rope)];
    m.job.turns = rope.turns;
    m.job.n_pairs = rope.n_pairs;
    m.job.half = graph_.ropes[size_t(op.rope)].n_rot / 2;
    m.job.max_rows = max_rows_;
    // Queries stand in the basis of the keys they meet.
    for (const Op& reader : graph_.ops) {
      ValueId q = reader.in[0];
      if (reader.kind != OpKind::attention) continue;
      for (const Op& select : graph_.ops)
        if (select.kind == OpKind::select_rows && select.out == q) q = select.in[0];
      if (q != op.out) continue;
      m.query = true;
      m.job.basis = basis_of(kv_[size_t(reader.kv)].k_form);
    }
  }
  return m;
}

// The rows that `op` stores: made by a job before, or as they are.
void CudaExecutable::store_heads(const Op& op, std::vector<HeadsNode::Made>& made) const {
  for (int side = 0; side < 2; ++side) {
    const ValueId v = op.in[size_t(side)];
    auto it =
        std::ranges::find_if(made, [&](const HeadsNode::Made& m) { return m.out == v && m.job.side < 0; });
    if (it == made.end()) {
      if (made.size() == 3)
        fail(ErrorCode::kFailed, "cuda: kv_append of layer {} does not follow the ops that make its rows",
             op.layer);
      made.push_back({HeadJob{}, v, kNone, false});
      it = made.end() - 1;
      it->job.n_head = graph_.kv[size_t(op.kv)].n_kv;
    }
    it->job.side = side;
    if (consumers_[size_t(v)] == 1 && !decisions_.keep_values) it->out = kNone;
  }
}

// Consecutive ops on heads of one size: norms by head, ropes, and the write into a cache, as one launch.
size_t CudaExecutable::add_heads(size_t at) {
  using Made = HeadsNode::Made;
  HeadsNode node;
  std::vector<Made>& made = node.made;
  HeadArgs& args = node.args;
  args.layer = graph_.ops[at].layer;
  args.head_dim = graph_.ops[at].kind == OpKind::kv_append ? graph_.kv[size_t(graph_.ops[at].kv)].head_dim
                                                           : graph_.ops[at].head_dim;
  int kv = -1;
  size_t used = 0;
  for (; at + used < graph_.ops.size() && kv < 0; ++used) {
    const Op& op = graph_.ops[at + used];
    if (op.kind == OpKind::kv_append) {
      if (graph_.kv[size_t(op.kv)].head_dim != args.head_dim) break;
      store_heads(op, made);
      kv = op.kv;
      args.layer = op.layer;  // what a value that cannot be stored is reported with
      continue;
    }
    const bool norm = op.kind == OpKind::norm && op.head_dim > 0 && op.in[1] == kNone;
    if (!(norm || op.kind == OpKind::rope) || op.head_dim != args.head_dim || made.size() == 3 ||
        (!made.empty() && set_of(op.out) != set_of(made[0].out)))
      break;
    made.push_back(make_heads(op));
  }
  if (used == 0)
    fail(ErrorCode::kFailed, "cuda: op {} of layer {} has a head size that is not built",
         int(graph_.ops[at].kind), args.layer);
  if (kv >= 0) args.kv = kv_[size_t(kv)];
  args.kv.head_dim = args.head_dim;
  args.n_jobs = int(made.size());
  node.stores = kv >= 0;
  std::vector<ValueId> touches;
  for (const Made& m : made) touches.insert(touches.end(), {m.in, m.out});
  heads_of_.clear();
  for (const Made& m : made)
    if (m.query) heads_of_[m.out] = heads_.size();
  const graph::RowSet set = set_of(made[0].in);
  heads_.push_back(std::move(node));
  const HeadsNode& heads = heads_.back();
  add_node(kv >= 0 ? "heads+kv" : "heads", heads.args.layer, touches, [this, set, &heads](const Rows& rows) {
    const int n = rows.of(set);
    if (n == 0 || (heads.attention != kNone && runs_near(rows, heads.attention_kv, heads.attention))) return;
    HeadArgs launched = head_args(heads);
    if (heads.stores && !rows.few()) place_tiles(heads, rows, launched);
    if (rows.few() && has_few_heads(launched)) return run_few_heads(next(), launched, step_view(), n);
    const bool pages = rows.own_pages && !rows.few(),
               encoded = pages || launched.full > 0;  // few: encode_step()
    run_heads(next(), launched, step_view(), n, pages);
    if (heads.stores && !rows.few() && needs_encode(launched.kv, encoded))
      encode_pages(next(), launched, step_view(), n, encoded);
  });
  return used;
}

HeadArgs CudaExecutable::head_args(const HeadsNode& heads) const {
  HeadArgs args = heads.args;
  args.fault = slot().params.as<int32_t>();
  for (size_t j = 0; j < heads.made.size(); ++j) {
    const HeadsNode::Made& m = heads.made[j];
    args.jobs[j] = m.job;
    args.jobs[j].in = data(m.in);
    args.jobs[j].out = data(m.out);
    if (m.query) args.jobs[j].out_shifted = shifted_[size_t(m.out)];
  }
  return args;
}

// Does this step's attention into `out` go over few enough keys for the launch that does all?
bool CudaExecutable::runs_near(const Rows& rows, int kv, ValueId out) const {
  const int window = kv_[size_t(kv)].window;
  return rows.few() && !rows.shifted &&
         (rows.all_near || (window > 0 && window <= near_keys(kv_[size_t(kv)]))) && !quantized(out, rows).q;
}

// True when attend_near() takes this attention; it makes the heads too when they are the node before it.
bool CudaExecutable::add_near(const Op& op, NearArgs& near) {
  if (decisions_.flash != backends::FlashAttention::kOn || decisions_.portable_kernels) return false;
  near.kv = kv_[size_t(op.kv)];
  near.n_head = op.n_head;
  near.scale = op.scale;
  near.softcap = op.softcap;
  near.output_rows = set_of(op.out) == graph::RowSet::kOutput;
  near.heads.layer = op.layer;
  if (!has_near(near)) return false;
  near.one_sequence = decisions_.n_seq <= 1;
  const auto it = heads_of_.find(op.in[0]);
  if (it == heads_of_.end() || decisions_.keep_values || consumers_[size_t(op.in[0])] != 1) return true;
  HeadsNode& heads = heads_[it->second];
  NearArgs with = near;
  with.heads = head_args(heads);
  const auto serves = [&](const HeadsNode::Made& m) { return m.query || (heads.stores && m.job.side >= 0); };
  if (!std::ranges::all_of(heads.made, serves) || !has_near(with)) return true;
  heads.attention = op.out;
  heads.attention_kv = op.kv;
  return true;
}

void CudaExecutable::add_matmul_node(const Op& op, std::vector<Part> parts, std::string name) {
  need_int8(parts[0].in);
  const ValueId in = parts[0].in;
  const bool streamed = streams(product(parts, {1, 1}));
  if (!streamed && feeds_int8(in)) int8_one_[size_t(in)] = true;
  std::vector<ValueId> touches;
  if (const auto it = norms_.find(in); it != norms_.end() && streamed && width(in) <= kMaxNormedRow) {
    NormNode& norm = it->second;
    if (norm.made_for == 0) norm.maker = nodes_.size();
    norm.made_for += int(parts.size());
    touches = {norm.x, norm.residual, norm.out, norm.second};
  }
  double bytes = 0;
  for (const Part& p : parts) {
    touches.insert(touches.end(), {p.in, p.out, p.mul, p.residual});
    for (graph::WeightId w : {p.w, p.w2})
      if (w != kNone) {
        const MatrixView& m = weights_.matrices[size_t(w)];
        const PlaneBytes b = plane_bytes(m.form, m.n_in, width(p.out));
        bytes += double(b.codes + b.high + b.aux + b.aux2);
      }
  }
  const size_t node = nodes_.size();
  add_node(std::move(name), op.layer, touches,
           [this, parts, node](const Rows& rows) { run_matmul(parts, rows, node); });
  nodes_.back().bytes = bytes;
  note_lead(parts, streamed);
}

// Of the node added last: does it stand beside the one before it?
void CudaExecutable::note_lead(const std::vector<Part>& parts, bool streamed) {
  const ValueId in = parts[0].in;
  const auto alone = [](const Part& p) { return p.mul == kNone && p.residual == kNone; };
  if (!streamed || width(in) > kMaxNormedRow || !std::ranges::all_of(parts, alone)) return;
  nodes_.back().streams = in;
  const size_t node = nodes_.size() - 1;
  if (node < 1 || nodes_[node - 1].streams != in) return;
  if (node < 2 || !leads_.contains(node - 2)) leads_.insert(node - 1);
}

// Norms that every matmul after them makes itself when there is one row. The first of those stores what
// others read later: nothing may stand between it and the norm.
void CudaExecutable::fuse_norms() {
  if (decisions_.keep_values) return;
  for (auto& [last, norm] : norms_) {
    int readers = 0;
    for (const Op& op : graph_.ops) {
      const bool reads = std::ranges::count(op.in, last) > 0;
      const bool matmul = op.kind == OpKind::matmul || op.kind == OpKind::gated_mlp;
      // A single norm's output is stored and may be read again; what a pair leaves is for the matmuls alone.
      if (reads &&
          (matmul || norm.second != kNone || op.kind == OpKind::logits || op.kind == OpKind::per_layer_embed))
        readers += op.kind == OpKind::gated_mlp && form_of(op.w[0]) != form_of(op.w[1]) ? 2 : 1;
    }
    norm.fused = norm.made_for > 0 && norm.made_for == readers && norm.maker == norm.node + 1;
  }
}

size_t CudaExecutable::add_matmul(size_t at) {
  std::vector<Part> parts;
  std::string name = "matmul";
  size_t used = 0;
  for (; at + used < graph_.ops.size() && parts.size() < 3; ++used) {
    const Op& op = graph_.ops[at + used];
    const bool plain = op.kind == OpKind::matmul;
    if (!plain && !(op.kind == OpKind::gated_mlp && used == 0)) break;
    if (used > 0 && (op.in[0] != parts[0].in || form_of(op.w[0]) != form_of(parts[0].w))) break;
    if (op.kind == OpKind::gated_mlp && form_of(op.w[0]) != form_of(op.w[1])) {
      // Two forms: the gate alone, then the other matrix times it.
      add_matmul_node(op, {{op.w[0], kNone, op.in[0], op.out, kNone, kNone, 0, 0, true}}, "gate");
      add_matmul_node(op, {{op.w[1], kNone, op.in[0], op.out, op.out, kNone, 0, 0, false}}, "up");
      return 1;
    }
    parts.push_back({op.w[0], plain ? kNone : op.w[1], op.in[0], op.out, op.in[2], op.in[1], op.offset, 0,
                     op.act == graph::Activation::kGeluTanh});
    if (plain && op.in[1] != kNone) parts.back().residual = op.in[1];
    if (!plain) parts.back().mul = parts.back().residual = kNone;
    name += ":" + graph_.values[size_t(op.out)].name;
    if (!plain) {
      ++used;
      break;
    }
  }
  add_matmul_node(graph_.ops[at], parts, name);
  return used;
}

void CudaExecutable::add_per_layer(const Op& op) {
  Part part;
  part.w = op.w[1];
  part.in = op.in[0];
  part.out = op.out;
  part.first_row = op.offset;
  add_matmul_node(op, {part}, "matmul:per_layer");
  PerLayerArgs args;
  args.table = weights_.matrices[size_t(op.w[0])];
  args.norm = weights_.vectors[size_t(op.w[2])];
  args.width = width(op.out);
  args.group = op.head_dim;
  args.offset = op.offset;
  args.scale = op.scale;
  args.eps = op.eps;
  args.output_rows = set_of(op.out) == graph::RowSet::kOutput;
  const ValueId out = op.out;
  add_node("per_layer", op.layer, {out}, [=, this](const Rows& rows) mutable {
    const int n = rows.of(set_of(out));
    if (n == 0) return;
    args.x = data(out);
    finish_per_layer(next(), args, step_view(), n);
  });
}

bool CudaExecutable::comes_from_rope(ValueId q) const {
  for (const Op& op : graph_.ops)
    if (op.kind == OpKind::select_rows && op.out == q) q = op.in[0];
  return std::ranges::any_of(graph_.ops,
                             [&](const Op& op) { return op.kind == OpKind::rope && op.out == q; });
}

// Queries that no rope op turns (it would rotate them too) go into their keys' basis in rows of their own.
float* CudaExecutable::add_rotation(const Op& attention) {
  const ValueId q = attention.in[0];
  memory_.emplace_back(size_t(width(q)) * size_t(max_rows_) * sizeof(float), Place::kDevice,
                       "allocating rotated queries");
  HeadArgs args;
  args.layer = attention.layer;
  args.head_dim = attention.head_dim;
  args.n_jobs = 1;
  args.jobs[0].out = memory_.back().as<float>();
  args.jobs[0].n_head = attention.n_head;
  args.jobs[0].basis = basis_of(kv_[size_t(attention.kv)].k_form);
  args.jobs[0].output_rows = set_of(q) == graph::RowSet::kOutput;
  add_node("rotate", attention.layer, {q}, [=, this](const Rows& rows) mutable {
    const int n = rows.of(set_of(q));
    args.jobs[0].in = data(q);
    if (n == 0) return;
    if (rows.few() && has_few_heads(args))
      run_few_heads(next(), args, step_view(), n);
    else
      run_heads(next(), args, step_view(), n, false);
  });
  return memory_.back().as<float>();
}

void CudaExecutable::add_attention(const Op& op) {
  AttentionArgs args;
  args.kv = kv_[size_t(op.kv)];
  args.n_head = op.n_head;
  args.scale = op.scale;
  args.softcap = op.softcap;
  args.output_rows = set_of(op.out) == graph::RowSet::kOutput;
  const int n_seq = std::max(1, decisions_.n_seq), stored = kv_buffers_.n_pages[size_t(op.kv)] / n_seq + 1;
  args.max_pages =
      args.kv.window > 0 ? std::min(stored, (args.kv.window - 1) / graph::kPageTokens + 2) : stored;
  const bool flash = decisions_.flash == backends::FlashAttention::kOn,
             portable = decisions_.portable_kernels;
  int8_[size_t(op.out)] = feeds_int8(op.out);
  const ValueId q = op.in[0], out = op.out;
  const bool roped = comes_from_rope(q);
  float* rotated = nullptr;
  if (!roped && basis_of(args.kv.k_form) != KvBasis::kModel) rotated = add_rotation(op);
  NearArgs near;
  const bool takes_near = add_near(op, near);
  const int kv = op.kv;
  const HeadsNode* heads = nullptr;
  std::vector<ValueId> touches{q, out};
  if (const auto it = heads_of_.find(q);
      takes_near && it != heads_of_.end() && heads_[it->second].attention == out) {
    heads = &heads_[it->second];
    for (const HeadsNode::Made& m : heads->made) touches.push_back(m.in);
  }
  // The queries are made by the node before, or in one more after it: nothing else uses the tiles in between.
  if (!args.output_rows)
    for (HeadsNode& made : heads_)
      if (made.stores && made.args.layer == op.layer && made.args.kv.pages == args.kv.pages) made.kv = op.kv;
  heads_of_.clear();
  add_node("attention", op.layer, touches, [=, this](const Rows& rows) mutable {
    const int n = rows.of(set_of(out));
    if (n == 0) return;
    if (takes_near && runs_near(rows, kv, out)) {
      near.q = rotated ? rotated : data(q);
      near.out = data(out);
      near.n_rows = n;
      near.one_row = rows.all == 1;
      if (heads) near.heads = head_args(*heads);
      return attend_near(next(), near, step_view());
    }
    args.q = rotated ? rotated : data(q);
    args.out = data(out);
    args.quant = quantized(out, rows);
    args.q_shifted = roped ? shifted_[size_t(q)] : args.q;
    args.n_rows = n;
    args.settled = rows.all == 1;
    const AttentionKernel kernel = choose_attention(args.kv, n, flash, portable);
    args.n_splits = attention_splits(args.kv, args.n_head, n, args.max_pages, kernel);
    args.partial = partial_.as<float>();
    args.partial_sums = partial_sums_.as<float>();
    if (kernel == AttentionKernel::kPrompt) return attend_by_sequence(args, kv, n);
    args.expanded.newest = slot().rows.back().pos;
    attend(next(), args, step_view(), kernel, [this] { return next(); });
  });
}

void CudaExecutable::build_nodes() {
  add_node("rope_table", -1, {}, [this](const Rows& rows) {
    for (const RopeTableArgs& rope : ropes_) fill_rope_table(next(), rope, step_view(), rows.all);
  });
  for (size_t i = 0; i < graph_.ops.size();) {
    const Op& op = graph_.ops[i];
    switch (op.kind) {
      case OpKind::embed: {
        const MatrixView table = weights_.matrices[size_t(op.w[0])];
        const ValueId out = op.out;
        const float scale = op.scale;
        add_node("embed", -1, {out}, [=, this](const Rows& rows) {
          embed_rows(next(), table, step_view(), rows.all, scale, data(out));
        });
        ++i;
        break;
      }
      case OpKind::norm:
        i += op.head_dim == 0 || op.head_dim == width(op.out) ? add_norm(i) : add_heads(i);
        break;
      case OpKind::rope:
      case OpKind::kv_append:
        i += add_heads(i);
        break;
      case OpKind::matmul:
      case OpKind::gated_mlp:
        i += add_matmul(i);
        break;
      case OpKind::per_layer_embed:
        add_per_layer(op);
        ++i;
        break;
      case OpKind::attention:
        add_attention(op);
        ++i;
        break;
      case OpKind::select_rows: {
        heads_of_.clear();
        const ValueId in = op.in[0], out = op.out;
        add_node("select", op.layer, {in, out}, [=, this](const Rows& rows) {
          if (rows.out == 0) return;
          select_rows(next(), data(in), step_view(), width(out), rows.out, data(out));
          if (shifted_[size_t(out)])
            select_rows(next(), shifted_[size_t(in)], step_view(), width(out), rows.out,
                        shifted_[size_t(out)]);
        });
        ++i;
        break;
      }
      case OpKind::logits:
        logits_op_ = &op;
        need_int8(op.in[0]);
        if (!streams(logits_product(1))) int8_one_[size_t(op.in[0])] = true;
        ++i;
        break;
    }
  }
  fuse_norms();
}

void CudaExecutable::plan_memory() {
  const size_t n = graph_.values.size();
  std::vector<int> first(n, -1), last(n, -1);
  const auto touch = [&](ValueId v, int node) {
    if (v == kNone) return;
    if (first[size_t(v)] < 0) first[size_t(v)] = node;
    last[size_t(v)] = std::max(last[size_t(v)], node);
  };
  for (size_t i = 0; i < nodes_.size(); ++i)
    for (ValueId v : nodes_[i].touches) touch(v, int(i));
  if (logits_op_) touch(logits_op_->in[0], int(nodes_.size()));
  struct Arena {
    size_t bytes;
    int busy_until;
    std::vector<size_t> users;
  };
  std::vector<size_t> order;
  for (size_t v = 0; v < n; ++v)
    if (first[v] >= 0) order.push_back(v);
  std::ranges::stable_sort(order, {}, [&](size_t v) { return first[v]; });
  std::vector<Arena> arenas;
  for (size_t v : order) {
    const size_t bytes = size_t(width(ValueId(v))) * size_t(max_rows_) * sizeof(float);
    Arena* best = nullptr;
    for (Arena& arena : arenas) {
      if (decisions_.keep_values || arena.busy_until >= first[v]) continue;
      const auto waste = [&](const Arena& a) { return a.bytes > bytes ? a.bytes - bytes : bytes - a.bytes; };
      if (!best || waste(arena) < waste(*best)) best = &arena;
    }
    if (!best) best = &arenas.emplace_back(Arena{0, -1, {}});
    best->bytes = std::max(best->bytes, bytes);
    best->busy_until = last[v];
    best->users.push_back(v);
  }
  for (const Arena& arena : arenas) {
    memory_.emplace_back(arena.bytes, Place::kDevice, "allocating activations");
    for (size_t v : arena.users) value_data_[v] = memory_.back().as<float>();
  }
}

// What steps need besides: int8 groups, logits, and what products of many rows read and share.
void CudaExecutable::allocate_scratch() {
  const size_t few = size_t(std::min(max_rows_, kMaxMatvecRows));
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    if (!int8_[v]) continue;
    const size_t w = size_t(width(ValueId(v)));
    memory_.emplace_back(few * w, Place::kDevice, "allocating activations");
    quant_[v].q = memory_.back().as<int8_t>();
    memory_.emplace_back(few * w / 32 * sizeof(GroupMeta), Place::kDevice, "allocating activations");
    quant_[v].meta = memory_.back().as<GroupMeta>();
  }
  const int logits_rows = std::min(kLogitsRows, max_rows_);
  logits_ = Memory(size_t(logits_rows) * size_t(graph_.n_vocab) * sizeof(float), Place::kDevice,
                   "allocating logits");
  static_assert(kMaxChosen == backends::kMaxCandidates);
  keys_ = Memory(size_t(kMaxChosen + choose_scratch(graph_.n_vocab)) * sizeof(uint64_t), Place::kDevice,
                 "allocating candidates");
  keys_host_ = Memory(backends::kMaxCandidates * sizeof(uint64_t), Place::kHost, "allocating candidates");
  if (max_rows_ <= kMaxMatvecRows) return;
  size_t widest = 0, largest = 0;
  for (size_t v = 0; v < graph_.values.size(); ++v)
    if (value_data_[v]) widest = std::max(widest, size_t(width(ValueId(v))));
  for (const MatrixView& m : weights_.matrices)
    if (gemm_expands(m, decisions_.portable_kernels))
      largest = std::max(largest, size_t(m.n_in) * size_t(m.n_out));
  half_ = Memory(widest * size_t(padded_gemm_rows(max_rows_)) * 2, Place::kDevice, "allocating activations");
  shares_ = Memory(gemm_share_bytes(), Place::kDevice, "allocating sums of matmuls");
  shares_.clear("clearing sums of matmuls");
  half_scale_ = Memory(size_t(max_rows_) * sizeof(float), Place::kDevice, "allocating activations");
  expanded_ = Memory(std::min(std::max<size_t>(largest, 8), kExpandedValues) * 2, Place::kDevice,
                     "allocating expanded weights");
}

void CudaExecutable::size_attention() {
  size_t values = 0, sums = 0, tiles = 0, units = 0;
  for (const Op& op : graph_.ops) {
    if (op.kind != OpKind::attention) continue;
    const KvView& kv = kv_[size_t(op.kv)];
    const int n_seq = std::max(1, decisions_.n_seq), stored = kv_buffers_.n_pages[size_t(op.kv)] / n_seq + 1;
    for (int n = 1; n <= max_rows_; ++n) {
      const AttentionKernel kernel = choose_attention(
          kv, n, decisions_.flash == backends::FlashAttention::kOn, decisions_.portable_kernels);
      const size_t parts =
          size_t(n) * size_t(op.n_head) * size_t(attention_splits(kv, op.n_head, n, stored, kernel));
      values = std::max(values, parts * size_t(op.head_dim));
      sums = std::max(sums, parts * 2);
      if (kernel != AttentionKernel::kPrompt || !needs_page_tiles(kv)) continue;
      const int seen = kv.window > 0 ? (kv.window + n) / graph::kPageTokens + 2 : stored;
      const size_t each = size_t(page_tiles(kv)), page = each * size_t(page_tile_bytes(kv.head_dim));
      const size_t pages =
          std::min(size_t(std::min(seen, stored)), std::max<size_t>(1, kPageTileBytes / page));
      tiles = std::max(tiles, pages * page);
      units = std::max(units, pages * each);
    }
  }
  if (tiles > 0) {
    page_tiles_ = Memory(tiles, Place::kDevice, "allocating page tiles of prompts");
    page_units_ = Memory(units * sizeof(float), Place::kDevice, "allocating page tiles of prompts");
  }
  partial_ = Memory(values * sizeof(float), Place::kDevice, "allocating attention partials");
  // What a part without keys leaves is read early, then not used; it should be a number of ours all the same.
  partial_.clear("clearing attention partials");
  partial_sums_ = Memory(sums * sizeof(float), Place::kDevice, "allocating attention partials");
}

std::vector<std::string> CudaExecutable::describe() const {
  std::vector<std::string> lines;
  for (int sliding = 0; sliding < 2; ++sliding) {
    int n_layers = 0;
    const Op* first = nullptr;
    for (const Op& op : graph_.ops) {
      if (op.kind != OpKind::attention || (graph_.kv[size_t(op.kv)].window > 0) != (sliding == 1)) continue;
      if (!first) first = &op;
      ++n_layers;
    }
    if (!first) continue;
    const graph::KvSpec& kv = graph_.kv[size_t(first->kv)];
    const bool wanted = decisions_.flash == backends::FlashAttention::kOn;
    const auto on_units = [&](int n_rows) {
      return choose_attention(kv_[size_t(first->kv)], n_rows, wanted, decisions_.portable_kernels) !=
             AttentionKernel::kPlain;
    };
    const bool few = on_units(1), flash = few && on_units(kMaxMatvecRows + 1);
    const std::string_view k = formats::require(kv.k_type).name, v = formats::require(kv.v_type).name;
    lines.push_back(
        fmt::format("{} layers ({}): head size {}, {} KV head{}, K {} V {}, kernel {}/{}.{}.{}, {}",
                    sliding ? "sliding" : "global", n_layers, kv.head_dim, kv.n_kv, kv.n_kv == 1 ? "" : "s",
                    k, v, k, v, flash ? "flash" : "plain", isa_,
                    flash     ? "flash attention engaged"
                    : !wanted ? "flash attention off: switched off by the caller"
                    : few ? "flash attention off in prompts: their tiles are f16, which these types outrange"
                          : "flash attention off: its tiles are f16, which these types outrange"));
  }
  return lines;
}

}  // namespace kvasir::cuda
