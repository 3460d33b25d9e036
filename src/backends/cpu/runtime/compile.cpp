// Graph -> phases, memory plan, kernel variants.
#include <algorithm>

#include "backends/cpu/runtime/executable.h"
#include "base/error.h"
#include "graph/kv_layout.h"

namespace kvasir::cpu {

using graph::kNone;
using graph::Op;
using graph::OpKind;
using graph::RowSet;
using graph::ValueId;

namespace {
// Rows of logits computed at a time: a wide vocabulary must not cost n_rows * n_vocab floats.
constexpr int kLogitsChunk = 16;
}  // namespace

CpuExecutable::CpuExecutable(const graph::Graph& graph, const std::vector<PreparedWeight>& weights,
                             const backends::Decisions& decisions, const backends::KvBuffers& kv,
                             int max_rows, Isa isa, ThreadPool& pool)
    : graph_(graph),
      weights_(weights),
      decisions_(decisions),
      kv_(kv),
      max_rows_(max_rows),
      isa_(isa),
      pool_(pool),
      kernels_(elementwise_kernels(isa)) {
  for (const graph::RopeSpec& spec : graph_.ropes) ropes_.emplace_back(spec, max_rows);
  choose_attention();
  build_phases();
  plan_memory();
  counters_ = std::make_unique<TaskCounter[]>(phases_.size() + 1);
  scratch_.resize(size_t(pool.size()));
  AttentionPlan bound;
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    if (graph_.ops[i].kind != OpKind::attention) continue;
    const graph::KvSpec& kv_spec = graph_.kv[size_t(graph_.ops[i].kv)];
    AttentionArgs shape;
    shape.variant = attention_[i];
    shape.n_head = graph_.ops[i].n_head;
    shape.n_kv = kv_spec.n_kv;
    shape.head_dim = kv_spec.head_dim;
    shape.window = kv_spec.window;
    const AttentionPlan plan =
        bound_attention(shape, max_rows, kv_.n_pages[size_t(graph_.ops[i].kv)] * graph::kPageTokens);
    bound.thread_bytes = std::max(bound.thread_bytes, plan.thread_bytes);
  }
  for (Scratch& s : scratch_) {
    s.acc = AlignedBuffer(size_t(kMaxTileRows) * kPanelRows * sizeof(float));
    s.acc2 = AlignedBuffer(size_t(kMaxTileRows) * kPanelRows * sizeof(float));
    s.attention = AlignedBuffer(bound.thread_bytes);
  }
  logits_ = AlignedBuffer(size_t(std::min(kLogitsChunk, max_rows)) * size_t(graph_.n_vocab) * sizeof(float));
}

void CpuExecutable::choose_attention() {
  attention_.assign(graph_.ops.size(), nullptr);
  is_query_.assign(graph_.values.size(), false);
  for (const Op& op : graph_.ops)
    if (op.kind == OpKind::attention) is_query_[size_t(op.in[0])] = true;
  for (const Op& op : graph_.ops)
    if (op.kind == OpKind::select_rows && is_query_[size_t(op.out)]) is_query_[size_t(op.in[0])] = true;
  place_rotations();
  segments_.resize(graph_.ops.size());
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    const Op& op = graph_.ops[i];
    if (op.kind != OpKind::attention) continue;
    const graph::KvSpec& kv = graph_.kv[size_t(op.kv)];
    std::string why;
    attention_[i] = find_attention(kv.k_type, kv.v_type, kv.head_dim, isa_,
                                   decisions_.flash == backends::FlashAttention::kOn, &why);
    if (!attention_[i]) fail(ErrorCode::kRefused, "cpu attention, layer {}: {}", op.layer, why);
  }
}

// A query that rope makes for one attention only is rotated there, once, and not in every item of the attention.
void CpuExecutable::place_rotations() {
  query_rotation_.assign(graph_.values.size(), nullptr);
  rotates_query_.assign(graph_.ops.size(), false);
  std::vector<int> readers(graph_.values.size(), 0);
  std::vector<const Op*> maker(graph_.values.size(), nullptr);
  for (const Op& op : graph_.ops) {
    for (ValueId v : op.in)
      if (v != kNone) ++readers[size_t(v)];
    if (op.out != kNone) maker[size_t(op.out)] = &op;
  }
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    const Op& op = graph_.ops[i];
    if (op.kind != OpKind::attention) continue;
    ValueId q = op.in[0];
    if (readers[size_t(q)] == 1 && maker[size_t(q)] && maker[size_t(q)]->kind == OpKind::select_rows)
      q = maker[size_t(q)]->in[0];
    if (readers[size_t(q)] != 1 || !maker[size_t(q)] || maker[size_t(q)]->kind != OpKind::rope) continue;
    query_rotation_[size_t(q)] = query_rotation(graph_.kv[size_t(op.kv)].k_type, isa_);
    rotates_query_[i] = query_rotation_[size_t(q)] != nullptr;
  }
}

CpuExecutable::Phase& CpuExecutable::row_phase(RowSet rows, bool fresh) {
  if (fresh || phases_.empty() || phases_.back().kind != PhaseKind::kRows || phases_.back().rows != rows) {
    phases_.push_back({});
    phases_.back().kind = PhaseKind::kRows;
    phases_.back().rows = rows;
  }
  return phases_.back();
}

void CpuExecutable::add_matmul_phase(const Op& op, MatmulPart part) {
  if (wants_int8(*part.w)) {
    bool done = false;
    for (const Phase& phase : phases_)
      done = done || std::find(phase.quantize.begin(), phase.quantize.end(), part.in) != phase.quantize.end();
    if (!done) row_phase(graph_.values[size_t(part.in)].rows, false).quantize.push_back(part.in);
  }
  // q, k and v read the same rows: one phase, one barrier.
  if (!phases_.empty() && phases_.back().kind == PhaseKind::kMatmul &&
      phases_.back().parts[0].in == part.in && op.kind == OpKind::matmul && part.mul == kNone &&
      part.residual == kNone) {
    phases_.back().parts.push_back(part);
    return;
  }
  phases_.push_back({});
  phases_.back().kind = PhaseKind::kMatmul;
  phases_.back().rows = graph_.values[size_t(part.out)].rows;
  phases_.back().parts.push_back(part);
}

// Encoding the pages that a step fills: behind a barrier after the rows are there, before anything attends.
void CpuExecutable::add_commit_phase(int kv) {
  if (graph::kv_exact_page_bytes(graph_.kv[size_t(kv)]) == 0) return;
  for (const Phase& phase : phases_)
    if (phase.kind == PhaseKind::kCommit && graph_.ops[size_t(phase.ops[0])].kv == kv) return;
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    if (graph_.ops[i].kind != OpKind::kv_append || graph_.ops[i].kv != kv) continue;
    phases_.push_back({});
    phases_.back().kind = PhaseKind::kCommit;
    phases_.back().rows = RowSet::kAll;
    phases_.back().ops = {int(i)};
  }
}

void CpuExecutable::build_phases() {
  phases_.push_back({});
  phases_.back().kind = PhaseKind::kRope;
  const auto matrix = [&](graph::WeightId w) { return &weights_[size_t(w)].matrix; };
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    const Op& op = graph_.ops[i];
    const int index = int(i);
    switch (op.kind) {
      case OpKind::matmul:
        add_matmul_phase(
            op, {matrix(op.w[0]), nullptr, op.in[0], op.out, op.in[2], op.in[1], op.offset, op.act, 0});
        break;
      case OpKind::gated_mlp:
        add_matmul_phase(op,
                         {matrix(op.w[0]), matrix(op.w[1]), op.in[0], op.out, kNone, kNone, 0, op.act, 0});
        break;
      case OpKind::per_layer_embed:
        if (op.offset % kPanelRows != 0)
          fail(ErrorCode::kFailed, "per_layer_embed starts at column {}; it must be a multiple of {}",
               op.offset, kPanelRows);
        add_matmul_phase(op, {matrix(op.w[1]), nullptr, op.in[0], op.out, kNone, kNone, 0,
                              graph::Activation::kNone, op.offset / kPanelRows});
        row_phase(graph_.values[size_t(op.out)].rows, false).ops.push_back(index);
        break;
      case OpKind::attention:
        add_commit_phase(op.kv);
        for (int sub = 0; sub < 2; ++sub) {
          phases_.push_back({});
          phases_.back().kind = PhaseKind::kAttention;
          phases_.back().rows = graph_.values[size_t(op.out)].rows;
          phases_.back().ops = {index};
          phases_.back().sub = sub;
        }
        break;
      case OpKind::logits:
        logits_op_ = &op;  // computed on read(), in chunks of rows
        if (wants_int8(*matrix(op.w[0]))) row_phase(RowSet::kOutput, false).quantize.push_back(op.in[0]);
        break;
      case OpKind::select_rows:
        // Reads rows other than its own: whatever made them must be behind a barrier.
        row_phase(RowSet::kOutput, phases_.back().rows != RowSet::kOutput).ops.push_back(index);
        break;
      case OpKind::kv_append:
        row_phase(RowSet::kAll, false).ops.push_back(index);
        break;
      case OpKind::embed:
      case OpKind::norm:
      case OpKind::rope:
        row_phase(graph_.values[size_t(op.out)].rows, false).ops.push_back(index);
        break;
    }
  }
}

void CpuExecutable::plan_memory() {
  const size_t n = graph_.values.size();
  value_data_.assign(n, nullptr);
  quantized_.assign(n, nullptr);
  staged_.assign(graph_.kv.size(), nullptr);
  struct Block {
    size_t bytes;
    int first, last;
    float** value;
    std::byte** quantized;
  };
  std::vector<int> first(n, -1), last(n, -1);
  std::vector<int> quantized_at(n, -1);
  std::vector<int> kv_first(graph_.kv.size(), -1), kv_last(graph_.kv.size(), -1);
  const auto touch = [&](ValueId v, int phase) {
    if (v == kNone) return;
    if (first[size_t(v)] < 0) first[size_t(v)] = phase;
    last[size_t(v)] = std::max(last[size_t(v)], phase);
  };
  for (size_t p = 0; p < phases_.size(); ++p) {
    for (int index : phases_[p].ops) {
      const Op& op = graph_.ops[size_t(index)];
      touch(op.out, int(p));
      if (op.kv >= 0) {
        if (kv_first[size_t(op.kv)] < 0) kv_first[size_t(op.kv)] = int(p);
        kv_last[size_t(op.kv)] = int(p);
      }
      if (op.kind == OpKind::per_layer_embed) continue;
      for (ValueId v : op.in) touch(v, int(p));
    }
    for (const MatmulPart& part : phases_[p].parts)
      for (ValueId v : {part.in, part.out, part.mul, part.residual}) touch(v, int(p));
    for (ValueId v : phases_[p].quantize) {
      touch(v, int(p));
      quantized_at[size_t(v)] = int(p);
    }
  }
  if (logits_op_) touch(logits_op_->in[0], int(phases_.size()));
  std::vector<Block> blocks;
  const int n_tiles = (max_rows_ + kMaxTileRows - 1) / kMaxTileRows;
  for (size_t v = 0; v < n; ++v) {
    if (first[v] < 0) continue;
    const size_t bytes = size_t(width(ValueId(v))) * size_t(max_rows_) * sizeof(float);
    blocks.push_back({bytes, first[v], last[v], &value_data_[v], nullptr});
    if (quantized_at[v] >= 0)
      blocks.push_back({size_t(n_tiles) * quantized_bytes(width(ValueId(v)), kMaxTileRows), quantized_at[v],
                        last[v], nullptr, &quantized_[v]});
  }
  for (size_t kv = 0; kv < graph_.kv.size(); ++kv) {
    const size_t bytes = graph::kv_exact_page_bytes(graph_.kv[kv]) * size_t(max_rows_ / graph::kPageTokens);
    if (bytes > 0 && kv_first[kv] >= 0)
      blocks.push_back({bytes, kv_first[kv], kv_last[kv], nullptr, &staged_[kv]});
  }
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.first < b.first; });
  struct Arena {
    size_t bytes;
    int busy_until;
    std::vector<Block*> users;
  };
  std::vector<Arena> plan;
  for (Block& block : blocks) {
    Arena* best = nullptr;
    for (Arena& arena : plan) {
      if (decisions_.keep_values || arena.busy_until >= block.first) continue;
      const auto cost = [&](const Arena& a) {
        return a.bytes >= block.bytes ? a.bytes - block.bytes : block.bytes - a.bytes;
      };
      if (!best || cost(arena) < cost(*best)) best = &arena;
    }
    if (!best) {
      plan.push_back({0, -1, {}});
      best = &plan.back();
    }
    best->bytes = std::max(best->bytes, block.bytes);
    best->busy_until = block.last;
    best->users.push_back(&block);
  }
  for (Arena& arena : plan) {
    arenas_.emplace_back(arena.bytes);
    for (Block* block : arena.users) {
      if (block->value) *block->value = arenas_.back().as<float>();
      if (block->quantized) *block->quantized = arenas_.back().data();
    }
  }
}

std::vector<std::string> CpuExecutable::describe() const {
  std::vector<std::string> lines;
  for (int sliding = 0; sliding < 2; ++sliding) {
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      if (op.kind != OpKind::attention) continue;
      const graph::KvSpec& kv = graph_.kv[size_t(op.kv)];
      if ((kv.window > 0) != (sliding == 1)) continue;
      int n_layers = 0;
      for (const Op& other : graph_.ops)
        n_layers +=
            other.kind == OpKind::attention && (graph_.kv[size_t(other.kv)].window > 0) == (sliding == 1);
      lines.push_back(fmt::format("{} layers ({}): head size {}, {} KV head{}, K {} V {}, kernel {}, {}",
                                  sliding ? "sliding" : "global", n_layers, kv.head_dim, kv.n_kv,
                                  kv.n_kv == 1 ? "" : "s", formats::require(kv.k_type).name,
                                  formats::require(kv.v_type).name, attention_name(*attention_[i]),
                                  decisions_.flash == backends::FlashAttention::kOn
                                      ? "flash attention engaged"
                                      : "flash attention off: switched off by the caller"));
      break;
    }
  }
  return lines;
}

}  // namespace kvasir::cpu
