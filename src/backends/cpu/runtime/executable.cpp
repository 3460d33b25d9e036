#include "backends/cpu/runtime/executable.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "graph/kv_layout.h"

namespace kvasir::cpu {

using graph::kNone;
using graph::Op;
using graph::OpKind;
using graph::Row;
using graph::RowSet;

namespace {

// Rows a task takes in row-wise phases: whole vectors of rows for the quantiser when there are many,
// otherwise small enough to share a few rows over a team.
int row_block(int n_rows) { return n_rows >= 64 ? 16 : 4; }
// Matmul tasks are about this many weight bytes, so that a decode step has work for every thread to the end.
constexpr size_t kTaskBytes = size_t(128) << 10;
// Above this row length a tile's activations no longer fit L2 beside a panel: take the tiles one after
// another.
constexpr int64_t kLongRow = 4096;

}  // namespace

void CpuExecutable::prepare(const graph::StepParams& step) {
  n_all_ = int(step.rows.size());
  if (n_all_ < 1 || n_all_ > max_rows_)
    fail(ErrorCode::kFailed, "a step has {} rows; this executable takes 1 to {}", n_all_, max_rows_);
  rows_.assign(step.rows.begin(), step.rows.end());
  sequences_.assign(step.sequences.begin(), step.sequences.end());
  output_rows_.clear();
  out_rows_.clear();
  any_shift_ = false;
  for (RopeTable& rope : ropes_) rope.begin_step();
  for (int i = 0; i < n_all_; ++i) {
    const Row& row = rows_[size_t(i)];
    if (row.want_logits) {
      output_rows_.push_back(i);
      out_rows_.push_back(row);
    }
    const int shift = sequences_[size_t(row.seq)].shift;
    any_shift_ = any_shift_ || shift != 0;
    for (RopeTable& rope : ropes_) {
      rope.prepare(row.pos);
      if (shift) rope.prepare(row.pos + shift);
    }
  }
  if (any_shift_ && !shifted_[0]) {
    int widest = 0;
    for (const Op& op : graph_.ops)
      if (op.kind == OpKind::attention) widest = std::max(widest, op.n_head * op.head_dim);
    for (AlignedBuffer& buffer : shifted_)
      buffer = AlignedBuffer(size_t(widest) * size_t(max_rows_) * sizeof(float));
    for (RopeTable& rope : ropes_) rope.allocate_shifted();
  }
  find_full_pages();
  for (size_t p = 0; p <= phases_.size(); ++p) counters_[p].reset();
  bad_layer_ = -1;
  logits_begin_ = logits_end_ = -1;
  size_t shared = 0;
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    if (graph_.ops[i].kind != OpKind::attention) continue;
    prepare_attention(int(i));
    if (!segments_[i].empty())
      shared = std::max(shared, segments_[i].back().shared_offset + segments_[i].back().plan.shared_bytes);
  }
  if (attention_shared_.size() < shared) attention_shared_ = AlignedBuffer(shared);
}

// Rows of one sequence follow each other in rising position: a page is full when its last row is there.
void CpuExecutable::find_full_pages() {
  full_pages_.clear();
  for (const Row& row : rows_)
    if (row.pos % graph::kPageTokens == graph::kPageTokens - 1)
      full_pages_.push_back({row.seq, row.pos / graph::kPageTokens});
}

ExactPages CpuExecutable::exact_pages(int kv) const {
  return {kv_.exact[size_t(kv)], staged_[size_t(kv)], kv_.n_exact[size_t(kv)],
          graph::kv_exact_page_bytes(graph_.kv[size_t(kv)])};
}

void CpuExecutable::prepare_attention(int op_index) {
  const Op& op = graph_.ops[size_t(op_index)];
  const graph::KvSpec& kv = graph_.kv[size_t(op.kv)];
  const RowSet set = graph_.values[size_t(op.out)].rows;
  const Row* rows = rows_of(set);
  std::vector<Segment>& segments = segments_[size_t(op_index)];
  segments.clear();
  size_t offset = 0;
  for (int begin = 0; begin < n_rows(set);) {
    int end = begin + 1;
    while (end < n_rows(set) && rows[end].seq == rows[begin].seq) ++end;
    const graph::SequenceView& seq = sequences_[size_t(rows[begin].seq)];
    Segment segment;
    AttentionArgs& args = segment.args;
    args.variant = attention_[size_t(op_index)];
    args.q_rotated = rotates_query_[size_t(op_index)];
    args.q_stride = args.out_stride = op.n_head * op.head_dim;
    args.q = data(op.in[0]) + begin * args.q_stride;
    if (seq.shift != 0) args.q_shifted = shifted_[set == RowSet::kOutput].as<float>() + begin * args.q_stride;
    args.out = data(op.out) + begin * args.out_stride;
    args.rows = rows + begin;
    args.n_rows = end - begin;
    args.page_table = seq.page_table[kv.window > 0];
    args.exact_table = seq.exact_table[kv.window > 0];
    args.exact = exact_pages(op.kv);
    args.exact_first = kv.exact_first;
    args.exact_last = kv.exact_last;
    args.keep_pages = seq.keep_pages;
    args.first_pos = seq.first_pos[kv.window > 0];
    args.pages = kv_.data[size_t(op.kv)];
    args.page_bytes = graph::kv_page_bytes(kv);
    args.n_head = op.n_head;
    args.n_kv = kv.n_kv;
    args.head_dim = kv.head_dim;
    args.window = kv.window;
    args.scale = op.scale;
    args.softcap = op.softcap;
    args.tcq = kv.tcq.get();
    segment.plan = plan_attention(args);
    segment.shared_offset = offset;
    offset += (segment.plan.shared_bytes + 63) / 64 * 64;
    segments.push_back(segment);
    begin = end;
  }
}

void CpuExecutable::submit(const graph::StepParams& step) {
  prepare(step);
  std::vector<double> seconds(decisions_.trace ? phases_.size() : 0);
  pool_.run([&](int thread) {
    auto start = std::chrono::steady_clock::now();
    for (size_t p = 0; p < phases_.size(); ++p) {
      if (phases_[p].kind == PhaseKind::kCommit && full_pages_.empty()) continue;
      run_phase(phases_[p], p, thread);
      if (p + 1 < phases_.size()) pool_.barrier();
      if (decisions_.trace && thread == 0) {
        const auto now = std::chrono::steady_clock::now();
        seconds[p] = std::chrono::duration<double>(now - start).count();
        start = now;
      }
    }
  });
  if (bad_layer_ >= 0)
    fail(ErrorCode::kFailed,
         "layer {}: the key or value of token {} at position {} is not finite or overflows its place in the "
         "cache; "
         "f32 or bf16 caches hold a wider range",
         bad_layer_.load(), rows_[size_t(bad_row_)].token, rows_[size_t(bad_row_)].pos);
  if (!decisions_.trace) return;
  static constexpr const char* kNames[] = {"rope_table", "rows", "matmul", "commit", "attention"};
  trace_.clear();
  for (size_t p = 0; p < phases_.size(); ++p) {
    backends::TraceRow row;
    row.op = kNames[size_t(phases_[p].kind)];
    if (!phases_[p].ops.empty()) row.layer = graph_.ops[size_t(phases_[p].ops[0])].layer;
    row.seconds = seconds[p];
    for (const MatmulPart& part : phases_[p].parts) {
      if (!row.op.empty() && row.op == "matmul") row.op += ":" + graph_.values[size_t(part.out)].name;
      for (const PackedMatrix* w : {part.w, part.gate_up}) {
        if (!w) continue;
        const double used = double(width(part.out)) / double(w->n_out);
        row.bytes += used * double(w->data.size());
        row.flops += 2.0 * used * double(w->n_in) * double(w->n_out) * n_rows(phases_[p].rows);
      }
    }
    trace_.push_back(row);
  }
}

void CpuExecutable::run_phase(const Phase& phase, size_t index, int thread) {
  TaskCounter& next = counters_[index];
  switch (phase.kind) {
    case PhaseKind::kRope:
      for (int64_t task = next.take(); task * row_block(n_all_) < n_all_; task = next.take()) {
        for (int r = int(task) * row_block(n_all_); r < std::min(n_all_, int(task + 1) * row_block(n_all_));
             ++r) {
          const int shift = sequences_[size_t(rows_[size_t(r)].seq)].shift;
          for (RopeTable& rope : ropes_) {
            rope.fill(r, rows_[size_t(r)].pos, false);
            if (any_shift_) rope.fill(r, rows_[size_t(r)].pos + shift, true);
          }
        }
      }
      break;
    case PhaseKind::kRows: {
      const int n = n_rows(phase.rows), block = row_block(n);
      for (int64_t task = next.take(); task * block < n; task = next.take())
        run_rows(phase, int(task) * block, std::min(n, int(task + 1) * block));
      break;
    }
    case PhaseKind::kMatmul:
      run_matmul(phase, next, thread);
      break;
    case PhaseKind::kCommit: {
      const AppendArgs args = append_args(graph_.ops[size_t(phase.ops[0])]);
      const int64_t n_sides = int64_t(args.n_kv) * 2, n_items = int64_t(full_pages_.size()) * n_sides;
      for (int64_t item = next.take(); item < n_items; item = next.take()) {
        const FullPage& page = full_pages_[size_t(item / n_sides)];
        commit_page(isa_, args, page.seq, page.logical, int(item % n_sides / 2), int(item % 2));
      }
      break;
    }
    case PhaseKind::kAttention: {
      const std::vector<Segment>& segments = segments_[size_t(phase.ops[0])];
      int64_t first = 0;
      size_t s = 0;
      for (int64_t item = next.take(); s < segments.size(); item = next.take()) {
        while (s < segments.size() && item - first >= segments[s].plan.n_items[phase.sub])
          first += segments[s++].plan.n_items[phase.sub];
        if (s == segments.size()) break;
        run_attention(segments[s].args, segments[s].plan, phase.sub, item - first,
                      attention_shared_.data() + segments[s].shared_offset,
                      scratch_[size_t(thread)].attention.data());
      }
      break;
    }
  }
}

void CpuExecutable::run_rows(const Phase& phase, int begin, int end) {
  for (int index : phase.ops) run_row_op(graph_.ops[size_t(index)], begin, end);
  // Laid out tile by tile: what one tile of a matmul reads lies together.
  const int tile = begin / kMaxTileRows, first = tile * kMaxTileRows;
  const int n = std::min(kMaxTileRows, n_rows(phase.rows) - first);
  for (graph::ValueId v : phase.quantize)
    quantize_rows(isa_, data(v) + int64_t(first) * width(v), width(v), width(v), n, begin - first,
                  end - first,
                  quantized_[size_t(v)] + size_t(tile) * quantized_bytes(width(v), kMaxTileRows));
}

void CpuExecutable::run_row_op(const Op& op, int begin, int end) {
  switch (op.kind) {
    case OpKind::embed: {
      const PreparedWeight& table = weights_[size_t(op.w[0])];
      const size_t row_bytes = table.format->row_bytes(table.n_in);
      for (int r = begin; r < end; ++r) {
        float* out = data(op.out) + int64_t(r) * table.n_in;
        table.format->decode(table.rows.data() + size_t(rows_[size_t(r)].token) * row_bytes, out, table.n_in);
        for (int64_t i = 0; i < table.n_in; ++i) out[i] *= op.scale;
      }
      break;
    }
    case OpKind::norm: {
      const int n = width(op.out), group = op.head_dim > 0 ? op.head_dim : n;
      const float* w = op.w[0] == kNone ? nullptr : weights_[size_t(op.w[0])].vector.data();
      for (int r = begin; r < end; ++r)
        for (int g = 0; g < n; g += group) {
          const int64_t at = int64_t(r) * n + g;
          kernels_.rms_norm(data(op.in[0]) + at, w, op.in[1] == kNone ? nullptr : data(op.in[1]) + at,
                            op.scale, op.eps, group, data(op.out) + at);
        }
      break;
    }
    case OpKind::rope:
      run_rope(op, begin, end);
      break;
    case OpKind::kv_append:
      run_append(op, begin, end);
      break;
    case OpKind::per_layer_embed:
      run_per_layer(op, begin, end);
      break;
    case OpKind::select_rows: {
      const size_t n = size_t(width(op.out));
      const bool twin = any_shift_ && is_query_[size_t(op.in[0])];
      for (int r = begin; r < end; ++r) {
        const size_t from = size_t(output_rows_[size_t(r)]);
        std::memcpy(data(op.out) + size_t(r) * n, data(op.in[0]) + from * n, n * sizeof(float));
        if (twin)
          std::memcpy(shifted_[1].as<float>() + size_t(r) * n, shifted_[0].as<float>() + from * n,
                      n * sizeof(float));
      }
      break;
    }
    default:
      break;
  }
}

void CpuExecutable::run_rope(const Op& op, int begin, int end) {
  const RopeTable& table = ropes_[size_t(op.rope)];
  const graph::RopeSpec& spec = graph_.ropes[size_t(op.rope)];
  const float* w = op.w[0] == kNone ? nullptr : weights_[size_t(op.w[0])].vector.data();
  const RowSet set = graph_.values[size_t(op.out)].rows;
  const int n = width(op.out);
  // Keys are stored at the position they were written for: with the shift already in it.
  const bool is_query = is_query_[size_t(op.out)];
  for (int r = begin; r < end; ++r) {
    const int step_row = set == RowSet::kAll ? r : output_rows_[size_t(r)];
    const graph::SequenceView& seq = sequences_[size_t(rows_[size_t(step_row)].seq)];
    const bool past_prefix = rows_[size_t(step_row)].pos / graph::kPageTokens >= seq.keep_pages;
    for (int variant = 0; variant < (is_query && any_shift_ ? 2 : 1); ++variant) {
      const bool shifted = is_query ? variant == 1 : any_shift_ && past_prefix;
      float* out =
          (variant == 1 ? shifted_[set == RowSet::kOutput].as<float>() : data(op.out)) + int64_t(r) * n;
      const float* x = data(op.in[0]) + int64_t(r) * n;
      for (int h = 0; h < op.n_head; ++h)
        kernels_.rope_head(x + h * op.head_dim, w, table.cos(step_row, shifted), table.sin(step_row, shifted),
                           table.n_pairs(), spec.n_rot / 2, op.head_dim, op.eps, out + h * op.head_dim);
      if (const Rotation rotate = query_rotation_[size_t(op.out)])  // once here, not in every item of attention
        for (int h = 0; h < op.n_head; ++h)
          rotate(formats::kKeys, out + h * op.head_dim, out + h * op.head_dim, op.head_dim);
    }
  }
}

AppendArgs CpuExecutable::append_args(const Op& op) const {
  const graph::KvSpec& kv = graph_.kv[size_t(op.kv)];
  AppendArgs args;
  args.k_type = kv.k_type;
  args.v_type = kv.v_type;
  args.k = data(op.in[0]);
  args.v = data(op.in[1]);
  args.k_stride = args.v_stride = int64_t(kv.n_kv) * kv.head_dim;
  args.rows = rows_.data();
  args.sequences = sequences_;
  args.table_class = kv.window > 0;
  args.pages = kv_.data[size_t(op.kv)];
  args.page_bytes = graph::kv_page_bytes(kv);
  args.exact = exact_pages(op.kv);
  args.n_kv = kv.n_kv;
  args.head_dim = kv.head_dim;
  args.tcq = kv.tcq.get();
  return args;
}

void CpuExecutable::run_append(const Op& op, int begin, int end) {
  const AppendArgs args = append_args(op);
  const int bad = append_rows(isa_, args, begin, end);
  int none = -1;
  if (bad >= 0 && bad_layer_.compare_exchange_strong(none, op.layer)) bad_row_ = bad;
}

void CpuExecutable::run_per_layer(const Op& op, int begin, int end) {
  const PreparedWeight& table = weights_[size_t(op.w[0])];
  const size_t row_bytes = table.format->row_bytes(table.n_in);
  const float* w = weights_[size_t(op.w[2])].vector.data();
  const int n = width(op.out), group = op.head_dim;
  const float root_half = 0.70710678f, token_scale = std::sqrt(float(group)) * root_half;
  // Only the columns that are used, when a block starts there.
  const bool part = op.offset % int(table.format->block) == 0 && n % int(table.format->block) == 0;
  const int64_t first = part ? op.offset : 0, count = part ? n : table.n_in;
  std::vector<float> columns(static_cast<size_t>(count));
  const float* token = columns.data() + (op.offset - first);
  const Row* rows = rows_of(graph_.values[size_t(op.out)].rows);
  for (int r = begin; r < end; ++r) {
    table.format->decode(
        table.rows.data() + size_t(rows[r].token) * row_bytes + table.format->row_bytes(first),
        columns.data(), count);
    float* out = data(op.out) + int64_t(r) * n;
    for (int i = 0; i < n; ++i) out[i] *= op.scale;
    for (int g = 0; g < n; g += group) {
      kernels_.rms_norm(out + g, w, nullptr, 1.0f, op.eps, group, out + g);
      kernels_.scale_add(out + g, root_half, token + g, token_scale, group, out + g);
    }
  }
}

Activations CpuExecutable::activations(const MatmulPart& part, int tile) const {
  const int first = tile * kMaxTileRows;
  Activations x;
  x.form = activation_form(*part.w->variant);
  x.n_rows = std::min(kMaxTileRows, n_rows(graph_.values[size_t(part.in)].rows) - first);
  x.n_in = part.w->n_in;
  x.f32 = data(part.in) + int64_t(first) * width(part.in);
  x.stride = width(part.in);
  if (const std::byte* packed = quantized_[size_t(part.in)])
    x.packed = packed + size_t(tile) * quantized_bytes(width(part.in), kMaxTileRows);
  return x;
}

void CpuExecutable::matmul_block(const MatmulPart& part, int64_t panel, int tile, int thread) {
  Scratch& scratch = scratch_[size_t(thread)];
  float* acc = scratch.acc.as<float>();
  const Activations x = activations(part, tile);
  const int row_begin = tile * kMaxTileRows, n = x.n_rows;
  matmul_tile(*part.w, x, part.panel + panel, 0, n, acc);
  float* acc2 = scratch.acc2.as<float>();
  if (part.gate_up) matmul_tile(*part.gate_up, x, part.panel + panel, 0, n, acc2);
  const int64_t column = panel * kPanelRows, out_width = width(part.out);
  const int n_columns = int(std::min<int64_t>(kPanelRows, out_width - column));
  const bool plain =
      part.act == graph::Activation::kNone && part.residual == kNone && n_columns == kPanelRows;
  if (plain) {  // the common case as whole cache lines
    for (int i = 0; i < n; ++i)
      std::memcpy(data(part.out) + int64_t(row_begin + i) * out_width + column, acc + i * kPanelRows,
                  kPanelRows * sizeof(float));
    return;
  }
  for (int i = 0; i < n; ++i) {
    float* out = data(part.out) + int64_t(row_begin + i) * out_width + column;
    const float* y = acc + i * kPanelRows;
    const float* factor = nullptr;
    if (part.gate_up) factor = acc2 + i * kPanelRows;
    if (part.mul != kNone)
      factor = data(part.mul) + int64_t(row_begin + i) * width(part.mul) + part.offset + column;
    if (part.act == graph::Activation::kGeluTanh)
      kernels_.gelu_mul(y, factor, n_columns, out);
    else
      std::memcpy(out, y, size_t(n_columns) * sizeof(float));
    if (part.residual == kNone) continue;
    const float* residual = data(part.residual) + int64_t(row_begin + i) * out_width + column;
    for (int j = 0; j < n_columns; ++j) out[j] += residual[j];
  }
}

void CpuExecutable::run_matmul(const Phase& phase, TaskCounter& next, int thread) {
  const int n = n_rows(phase.rows);
  const int n_tiles = (n + kMaxTileRows - 1) / kMaxTileRows;
  int64_t first = 0, task = next.take();
  for (const MatmulPart& part : phase.parts) {
    const int64_t n_panels = (width(part.out) + kPanelRows - 1) / kPanelRows;
    const size_t panel_bytes = part.w->data.size() / size_t(part.w->n_panels()) * (part.gate_up ? 2 : 1);
    const int64_t chunk =
        std::clamp<int64_t>(int64_t(kTaskBytes / std::max<size_t>(panel_bytes, 1)), 1, n_panels);
    const int64_t n_chunks = (n_panels + chunk - 1) / chunk;
    const bool tile_outer = part.w->n_in > kLongRow;
    const int64_t n_tasks = n_chunks * (tile_outer ? n_tiles : 1);
    for (; task - first < n_tasks; task = next.take()) {
      const int64_t local = task - first;
      const int64_t begin = local % n_chunks * chunk, end = std::min(n_panels, begin + chunk);
      const int tile_begin = tile_outer ? int(local / n_chunks) : 0;
      const int tile_end = tile_outer ? tile_begin + 1 : n_tiles;
      for (int64_t panel = begin; panel < end; ++panel)
        for (int t = tile_begin; t < tile_end; ++t) matmul_block(part, panel, t, thread);
    }
    first += n_tasks;
  }
}

std::span<const float> CpuExecutable::read(int output_row) {
  if (output_row < 0 || output_row >= int(output_rows_.size()))
    fail(ErrorCode::kFailed, "logits of output row {} were asked for; the step has {}", output_row,
         output_rows_.size());
  const int n_vocab = graph_.n_vocab;
  if (output_row < logits_begin_ || output_row >= logits_end_) {
    const int capacity = int(logits_.size() / (size_t(n_vocab) * sizeof(float)));
    logits_begin_ = output_row / capacity * capacity;
    // A chunk never crosses a tile: kMaxTileRows is a multiple of its size.
    logits_end_ = std::min(int(output_rows_.size()), logits_begin_ + capacity);
    const PackedMatrix& w = weights_[size_t(logits_op_->w[0])].matrix;
    const MatmulPart part{&w,    nullptr, logits_op_->in[0],        kNone, kNone,
                          kNone, 0,       graph::Activation::kNone, 0};
    const int tile = logits_begin_ / kMaxTileRows, begin = logits_begin_ % kMaxTileRows;
    const Activations x = activations(part, tile);
    constexpr int64_t kPanelsPerTask = 8;
    TaskCounter next;
    pool_.run([&](int thread) {
      float* acc = scratch_[size_t(thread)].acc.as<float>();
      const int n = logits_end_ - logits_begin_;
      for (int64_t task = next.take(); task * kPanelsPerTask < w.n_panels(); task = next.take()) {
        for (int64_t p = task * kPanelsPerTask; p < std::min(w.n_panels(), (task + 1) * kPanelsPerTask);
             ++p) {
          matmul_tile(w, x, p, begin, n, acc);
          const int columns = int(std::min<int64_t>(kPanelRows, n_vocab - p * kPanelRows));
          for (int i = 0; i < n; ++i) {
            float* out = logits_.as<float>() + int64_t(i) * n_vocab + p * kPanelRows;
            std::memcpy(out, acc + i * kPanelRows, size_t(columns) * sizeof(float));
            if (logits_op_->softcap > 0) kernels_.softcap(out, columns, logits_op_->softcap);
          }
        }
      }
    });
  }
  return {logits_.as<float>() + size_t(output_row - logits_begin_) * size_t(n_vocab), size_t(n_vocab)};
}

std::span<const float> CpuExecutable::inspect(graph::ValueId value) {
  if (!decisions_.keep_values || !value_data_[size_t(value)]) return {};
  return {data(value), size_t(n_rows(graph_.values[size_t(value)].rows)) * size_t(width(value))};
}

}  // namespace kvasir::cpu
