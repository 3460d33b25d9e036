#include "backends/cuda/runtime/executable.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace kvasir::cuda {

using graph::kNone;
using graph::ValueId;

CudaExecutable::~CudaExecutable() {
  cudaStreamSynchronize(stream_);
  forget_graphs([](const StepKind&) { return true; });
  for (const Slot& slot : slots_)
    if (slot.done) cudaEventDestroy(slot.done);
}

void CudaExecutable::forget_graphs(const std::function<bool(const StepKind&)>& which) {
  std::erase_if(graphs_, [&](const auto& one) {
    const auto& [kind, exec] = one;
    if (!which(kind)) return false;
    if (exec) cudaGraphExecDestroy(exec);
    return true;
  });
}

Launch CudaExecutable::next() {
  const Launch launch{stream_, may_overlap_ && !decisions_.trace && !decisions_.portable_kernels};
  may_overlap_ = true;
  large_next_ = true;
  return launch;
}

// Of products that follow each other every second one is large; one after another kind of launch is, whose
// blocks stand on some multiprocessors only.
void CudaExecutable::run_stream(StreamArgs args) {
  args.large = large_next_;
  stream_matvec(next(), args);
  large_next_ = !args.large;
}

StepView CudaExecutable::step_view() const {
  const std::byte* base = slot().params.as<std::byte>();
  StepView view;
  view.chosen = slots_[1 - slot_].params.as<uint64_t>() + 1;
  view.rows = reinterpret_cast<const graph::Row*>(base + rows_at_);
  view.out_rows = reinterpret_cast<const int32_t*>(base + out_rows_at());
  view.sequences = reinterpret_cast<const SequenceInfo*>(base + 16);
  view.tables = tables_.as<int32_t>();
  view.table_stride = table_stride_;
  return view;
}

void CudaExecutable::write_params(const graph::StepParams& step, Rows& rows) {
  rows.all = int(step.rows.size());
  if (rows.all < 1 || rows.all > max_rows_)
    fail(ErrorCode::kFailed, "a step has {} rows; this executable takes 1 to {}", rows.all, max_rows_);
  if (int(step.sequences.size()) > std::max(1, decisions_.n_seq))
    fail(ErrorCode::kFailed, "a step has {} sequences; this executable takes {}", step.sequences.size(),
         decisions_.n_seq);
  std::byte* base = slot().params_host.as<std::byte>();
  int32_t* fault = reinterpret_cast<int32_t*>(base);
  fault[0] = fault[1] = -1;
  std::memcpy(fault + 2, &choice_.random, sizeof(choice_.random));
  SequenceInfo* sequences = reinterpret_cast<SequenceInfo*>(base + 16);
  for (size_t s = 0; s < step.sequences.size(); ++s) {
    const graph::SequenceView& from = step.sequences[s];
    sequences[s] = {from.shift, from.keep_pages, {from.first_pos[0], from.first_pos[1]}};
  }
  int32_t* out_rows = reinterpret_cast<int32_t*>(base + out_rows_at());  // after rows.all is known
  std::memcpy(base + rows_at_, step.rows.data(), step.rows.size_bytes());
  rows.out = 0;
  rows.own_pages = rows.all_near = true;
  rows.fills = false;
  rows.full = 0;
  const graph::Row& front = step.rows[0];
  bool follow = rows.all >= graph::kPageTokens && front.pos % graph::kPageTokens == 0;
  rows.shifted =
      std::ranges::any_of(step.sequences, [](const graph::SequenceView& s) { return s.shift != 0; });
  std::vector<bool> seen(step.sequences.size(), false);
  for (int i = 0; i < rows.all; ++i) {
    const graph::Row& row = step.rows[size_t(i)];
    if (row.want_logits) out_rows[rows.out++] = i;
    if (seen[size_t(row.seq)]) rows.own_pages = false;
    seen[size_t(row.seq)] = true;
    if (row.pos >= kNearKeys) rows.all_near = false;
    follow = follow && row.seq == front.seq && row.pos == front.pos + i;
    if (row.pos % graph::kPageTokens == graph::kPageTokens - 1)
      rows.fills = open_kv_[0].n + open_kv_[1].n > 0;
  }
  if (follow) rows.full = (front.pos + rows.all) / graph::kPageTokens * graph::kPageTokens;
  slot().rows.assign(step.rows.begin(), step.rows.end());
}

void CudaExecutable::grow_tables(int n_pages) {
  forget_graphs([](const StepKind&) { return true; });
  const size_t n = size_t(std::max(1, decisions_.n_seq)) * 4 * size_t(n_pages);
  tables_host_ = Memory(n * sizeof(int32_t), Place::kHost, "allocating page tables");
  tables_ = Memory(n * sizeof(int32_t), Place::kDevice, "allocating page tables");
  std::fill_n(tables_host_.as<int32_t>(), n, -2);  // differs from every entry: all are uploaded
  table_stride_ = n_pages;
}

void CudaExecutable::write_tables(const graph::StepParams& step) {
  int longest = 0;
  for (const graph::SequenceView& seq : step.sequences)
    for (int cls = 0; cls < 2; ++cls)
      longest = std::max(
          {longest, int(seq.page_table[size_t(cls)].size()), int(seq.exact_table[size_t(cls)].size())});
  if (longest > table_stride_) grow_tables(longest + longest / 2);
  for (size_t s = 0; s < step.sequences.size(); ++s)
    for (size_t kind = 0; kind < 4; ++kind) {
      const graph::SequenceView& seq = step.sequences[s];
      const std::span<const int32_t> from = kind % 2 ? seq.exact_table[kind / 2] : seq.page_table[kind / 2];
      const size_t at = (s * 4 + kind) * size_t(table_stride_);
      int32_t* to = tables_host_.as<int32_t>() + at;
      // Only what changed travels; a table is mostly append-only.
      const auto [a, b] = std::mismatch(from.begin(), from.end(), to);
      if (a == from.end()) continue;
      const size_t first = size_t(a - from.begin());
      std::copy(a, from.end(), b);
      counters_.uploaded_bytes += (from.size() - first) * sizeof(int32_t);
      check(cudaMemcpyAsync(tables_.as<int32_t>() + at + first, to + first,
                            (from.size() - first) * sizeof(int32_t), cudaMemcpyHostToDevice, stream_),
            "uploading page tables");
    }
  // Queries turned at pos + shift have rows of their own, once any sequence has shifted.
  const bool shifts =
      std::ranges::any_of(step.sequences, [](const graph::SequenceView& s) { return s.shift != 0; });
  if (!shifts || std::ranges::any_of(shifted_, [](const float* p) { return p != nullptr; })) return;
  const auto give = [&](ValueId v) {
    memory_.emplace_back(size_t(width(v)) * size_t(max_rows_) * sizeof(float), Place::kDevice,
                         "allocating shifted queries");
    shifted_[size_t(v)] = memory_.back().as<float>();
  };
  for (const graph::Op& op : graph_.ops) {
    if (op.kind != graph::OpKind::attention) continue;
    give(op.in[0]);
    for (const graph::Op& select : graph_.ops)
      if (select.kind == graph::OpKind::select_rows && select.out == op.in[0]) give(select.in[0]);
  }
  forget_graphs([](const StepKind&) { return true; });
}

void CudaExecutable::encode_step(const Rows& rows) {
  if (!rows.few() || !rows.fills) return;
  for (const bool search : {false, true})
    if (open_kv_[search].n > 0)
      encode_pages_of(next(), open_kv_[search], search, step_view(), rows.all, slot().params.as<int32_t>());
}

void CudaExecutable::upload_params() {
  check(cudaMemcpyAsync(slot().params.as(), slot().params_host.as(),
                        out_rows_at() + size_t(rows_.out) * sizeof(int32_t), cudaMemcpyHostToDevice, stream_),
        "uploading step parameters");
}

void CudaExecutable::enqueue(const Rows& rows) {
  upload_params();
  may_overlap_ = false;
  half_of_ = kNone;
  std::ranges::fill(groups_left_, 0);
  tiles_kv_ = -1;
  for (const Node& node : nodes_) node.run(rows);
  encode_step(rows);
  if (logits_op_ && rows.out > 0 && rows.out <= kMaxMatvecRows) run_logits(0, rows.out);
  if (choice_.n_best > 1)
    choose([this] { return next(); }, logits_.as<float>(), choice_.n_best,
           {choice_, slot().params.as<uint64_t>() + 1});
  check(cudaMemcpyAsync(slot().outcome.as(), slot().params.as(), 16, cudaMemcpyDeviceToHost, stream_),
        "reading the step's outcome");
}

void CudaExecutable::enqueue_traced(const Rows& rows) {
  upload_params();
  half_of_ = kNone;
  std::ranges::fill(groups_left_, 0);
  tiles_kv_ = -1;
  std::vector<cudaEvent_t> events(nodes_.size() + 2);
  for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "creating an event");
  for (size_t i = 0; i <= nodes_.size(); ++i) {
    check(cudaEventRecord(events[i], stream_), "recording an event");
    if (i < nodes_.size()) {
      nodes_[i].run(rows);
    } else {
      encode_step(rows);
      if (logits_op_ && rows.out > 0 && rows.out <= kMaxMatvecRows) run_logits(0, rows.out);
    }
  }
  check(cudaEventRecord(events.back(), stream_), "recording an event");
  check(cudaMemcpyAsync(slot().outcome.as(), slot().params.as(), 16, cudaMemcpyDeviceToHost, stream_),
        "reading the step's outcome");
  check(cudaStreamSynchronize(stream_), "running a step");
  trace_.clear();
  for (size_t i = 0; i <= nodes_.size(); ++i) {
    float ms = 0;
    cudaEventElapsedTime(&ms, events[i], events[i + 1]);
    backends::TraceRow row;
    row.op = i < nodes_.size() ? nodes_[i].name : "logits";
    row.layer = i < nodes_.size() ? nodes_[i].layer : -1;
    row.seconds = double(ms) / 1e3;
    row.bytes = i < nodes_.size() ? nodes_[i].bytes : 0;
    trace_.push_back(row);
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
}

cudaGraphExec_t CudaExecutable::capture() {
  cudaGraph_t captured = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a step");
  try {
    enqueue(rows_);
  } catch (...) {  // the stream goes on without it
    cudaStreamEndCapture(stream_, &captured);
    if (captured) cudaGraphDestroy(captured);
    (void)cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream_, &captured), "capturing a step");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&exec, captured, 0);
  cudaGraphDestroy(captured);
  check(status, "instantiating a step");
  return exec;
}

void CudaExecutable::start(const graph::StepParams& step) {
  write_params(step, rows_);
  write_tables(step);
  logits_n_ = 0;
  ++counters_.steps;
  counters_.uploaded_bytes += out_rows_at() + size_t(rows_.out) * sizeof(int32_t);
  if (decisions_.trace) {
    enqueue_traced(rows_);
  } else if (rows_.all > kMaxMatvecRows) {
    enqueue(rows_);
  } else {
    // The first step of a kind runs as it is (kernels are loaded then), the second is captured.
    const StepKind kind{slot_,         rows_.all,      rows_.out,   rows_.own_pages,
                        rows_.shifted, rows_.all_near, rows_.fills, int(choice_.n_best)};
    const auto it = graphs_.find(kind);
    if (it == graphs_.end()) {
      enqueue(rows_);
      graphs_[kind] = nullptr;
    } else {
      if (!it->second) {
        it->second = capture();
      }
      check(cudaGraphLaunch(it->second, stream_), "launching a step");
    }
  }
  check(cudaGetLastError(), "launching a step");
}

void CudaExecutable::submit(const graph::StepParams& step) {
  settle();
  choice_ = {};
  start(step);
  check(cudaStreamSynchronize(stream_), "running a step");
  if (slot().outcome.as<int32_t>()[0] == kWideTiles) {  // once more: the same rows, other tiles
    struct Wide {
      bool& on;
      explicit Wide(bool& flag) : on(flag) { on = true; }
      ~Wide() { on = false; }
    } wide(wide_tiles_);
    start(step);
    --counters_.steps;
    ++counters_.repeats;
    check(cudaStreamSynchronize(stream_), "running a step");
  }
  if (rows_.out > 0 && rows_.out <= kMaxMatvecRows) logits_first_ = 0, logits_n_ = rows_.out;
  logits_read_.assign(size_t(std::max(rows_.out, 1)), false);
  check_outcome(slot());
}

void CudaExecutable::check_outcome(const Slot& slot) const {
  const int32_t* fault = slot.outcome.as<int32_t>();
  if (fault[0] < 0) return;
  const graph::Row& row = slot.rows[size_t(fault[1])];
  const int token = row.token == graph::kChosenToken
                        ? key_token((&slot == &slots_[0] ? slots_[1] : slots_[0]).outcome.as<uint64_t>()[1])
                        : row.token;
  fail(ErrorCode::kFailed,
       "layer {}: the key or value of token {} at position {} is not finite or overflows the cache type; "
       "f32 or bf16 caches hold a wider range",
       fault[0], token, row.pos);
}

void CudaExecutable::settle() {
  while (n_ahead_ > 0) chosen();
}

bool CudaExecutable::chooses() const { return logits_op_ && !decisions_.trace && streams(logits_product(1)); }

// Of the choice only the random number travels with a step; the rest is part of the captured launches.
void CudaExecutable::set_choice(const graph::Choice& choice) {
  if (choice.n_best < 1 || choice.n_best > backends::kMaxCandidates)
    fail(ErrorCode::kFailed, "{} candidates were asked for; 1 to {} can be chosen", choice.n_best,
         backends::kMaxCandidates);
  graph::Choice next = choice;
  next.n_best = std::min(choice.n_best, graph_.n_vocab);
  if (next.n_best == 1) {
    choice_ = {};
    return;
  }
  const auto same = [](const graph::Choice& a, const graph::Choice& b) {
    return a.temperature == b.temperature && a.top_p == b.top_p && a.min_p == b.min_p;
  };
  if (!same(next, drawn_by_)) forget_graphs([](const StepKind& kind) { return kind.candidates > 1; });
  choice_ = drawn_by_ = next;
}

void CudaExecutable::submit_ahead(const graph::StepParams& step, const graph::Choice& choice) {
  if (step.rows.size() != 1 || !step.rows[0].want_logits || !chooses() || n_ahead_ == 2)
    fail(ErrorCode::kFailed, "a step of {} rows cannot be queued behind {}", step.rows.size(), n_ahead_);
  set_choice(choice);
  slot_ = 1 - slot_;
  start(step);
  check(cudaEventRecord(slot().done, stream_), "recording an event");
  ++n_ahead_;
  logits_first_ = 0, logits_n_ = 1;
  logits_read_.assign(1, false);
}

int32_t CudaExecutable::chosen() {
  if (n_ahead_ == 0) fail(ErrorCode::kFailed, "no step is queued");
  const Slot& oldest = slots_[n_ahead_ == 2 ? 1 - slot_ : slot_];
  check(cudaEventSynchronize(oldest.done), "running a step");
  --n_ahead_;
  if (oldest.outcome.as<int32_t>()[0] >= 0) {  // what was queued after it went on from nonsense
    check(cudaStreamSynchronize(stream_), "running a step");
    n_ahead_ = 0;
  }
  check_outcome(oldest);
  return key_token(oldest.outcome.as<uint64_t>()[1]);
}

void CudaExecutable::to_half(ValueId v, int n_rows) {
  if (half_of_ == v) return;
  gemm_rows(next(), data(v), width(v), n_rows, decisions_.portable_kernels, half_.as<uint16_t>(),
            half_scale_.as<float>());
  half_of_ = v;
}

// Of rows that half_ holds.
GemmArgs CudaExecutable::gemm_args(int n_in, int n_rows) const {
  GemmArgs args;
  args.x = half_.as<uint16_t>();
  args.x_scale = half_scale_.as<float>();
  args.n_rows = n_rows;
  args.n_in = n_in;
  args.portable = decisions_.portable_kernels;
  args.expanded = expanded_.as<uint16_t>();
  args.expanded_values = expanded_.size() / 2;
  args.shares = shares_.as<uint8_t>();
  return args;
}

template <typename To>
void CudaExecutable::fill_part(const Part& from, To& to) const {
  to.w = weights_.matrices[size_t(from.w)];
  if (from.w2 != kNone) to.w2 = weights_.matrices[size_t(from.w2)];
  to.first_row = from.first_row;
  to.n_out = width(from.out);
  to.out = data(from.out);
  if (from.mul != kNone) to.mul = data(from.mul) + from.mul_offset, to.mul_stride = width(from.mul);
  to.residual = data(from.residual);
  to.gelu = from.gelu;
}

void CudaExecutable::run_gemm(const std::vector<Part>& parts, int n_rows) {
  to_half(parts[0].in, n_rows);
  GemmArgs args = gemm_args(width(parts[0].in), n_rows);
  args.n_parts = int(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    fill_part(parts[i], args.parts[i]);
    args.parts[i].out_stride = args.parts[i].n_out;
  }
  gemm([this] { return next(); }, args);
}

// What rows at positions oldest .. newest of a sequence see.
PageTiles CudaExecutable::tiles_of(const KvView& kv, int seq, int oldest, int newest) const {
  const SequenceInfo* sequences =
      reinterpret_cast<const SequenceInfo*>(slot().params_host.as<std::byte>() + 16);
  const int first =
      std::max(sequences[seq].first_pos[kv.window > 0], kv.window > 0 ? oldest - kv.window + 1 : 0);
  PageTiles tiles;
  if (needs_page_tiles(kv)) tiles.tiles = page_tiles_.as<uint8_t>();
  tiles.units = page_units_.as<float>();
  tiles.capacity = int(int64_t(page_tiles_.size()) / (page_tile_bytes(kv.head_dim) * page_tiles(kv)));
  tiles.sequence = seq;
  tiles.first = first / graph::kPageTokens;
  tiles.end = newest / graph::kPageTokens + 1;
  tiles.oldest = first;
  tiles.newest = newest;
  return tiles;
}

constexpr int kOlderTiles = 64;  // times KV heads; more are quicker in a launch of their own

// Rows that fill pages are encoded with their heads, and their tiles made for the attention that follows.
void CudaExecutable::place_tiles(const HeadsNode& heads, const Rows& rows, HeadArgs& args) {
  args.full = rows.full;
  if (rows.full == 0 || heads.kv < 0 || wide_tiles_ || !makes_tiles(args.kv)) return;
  if (choose_attention(args.kv, rows.all, decisions_.flash == backends::FlashAttention::kOn,
                       decisions_.portable_kernels) != AttentionKernel::kPrompt)
    return;
  const graph::Row &first = slot().rows.front(), &last = slot().rows.back();
  PageTiles tiles = tiles_of(args.kv, first.seq, first.pos, last.pos);
  if (tiles.end - tiles.first > tiles.capacity) return;
  // A few older pages are made tiles beside the heads, too.
  const int own = first.pos / graph::kPageTokens;
  tiles.older_end = (own - tiles.first) * args.kv.n_kv <= kOlderTiles ? own : tiles.first;
  tiles_made_ = tiles.older_end == own ? tiles.first : own;
  args.tiles = tiles;
  tiles_kv_ = heads.kv;
  ++counters_.early_tiles;
}

// Rows of each sequence by themselves, for whom its pages are expanded; a few rows that follow each other
// read pages as they are.
void CudaExecutable::attend_by_sequence(const AttentionArgs& args, int kv, int n_rows) {
  const int32_t* out_rows =
      reinterpret_cast<const int32_t*>(slot().params_host.as<std::byte>() + out_rows_at());
  const auto row = [&](int r) { return slot().rows[size_t(args.output_rows ? out_rows[r] : r)]; };
  const auto end_of = [&](int begin) {
    int end = begin + 1;
    while (end < n_rows && row(end).seq == row(begin).seq) ++end;
    return end;
  };
  for (int begin = 0, end = 0; begin < n_rows; begin = end) {
    end = end_of(begin);
    while (end < n_rows && end_of(end) - begin <= kMaxMatvecRows) end = end_of(end);
    AttentionArgs part = args;
    StepView step = step_view();
    const int64_t skip = int64_t(begin) * args.n_head * args.kv.head_dim;
    part.q += skip;
    if (part.q_shifted) part.q_shifted += skip;
    part.out += skip;
    part.n_rows = end - begin;
    step.rows += args.output_rows ? 0 : begin;
    step.out_rows += args.output_rows ? begin : 0;
    const AttentionKernel kernel = choose_attention(args.kv, part.n_rows, true, decisions_.portable_kernels);
    part.n_splits = attention_splits(args.kv, args.n_head, part.n_rows, args.max_pages, kernel);
    if (kernel == AttentionKernel::kPrompt) {
      const int seq = row(begin).seq;
      int oldest = row(begin).pos, newest = oldest;
      for (int r = begin; r < end; ++r)
        oldest = std::min(oldest, row(r).pos), newest = std::max(newest, row(r).pos);
      part.expanded = tiles_of(args.kv, seq, oldest, newest);
      if (tiles_kv_ == kv) part.expanded.made_from = tiles_made_;
      tiles_kv_ = -1;
    }
    attend(next(), part, step, kernel, [this] { return next(); });
  }
}

MatvecArgs CudaExecutable::product(const std::vector<Part>& parts, const Rows& rows) const {
  MatvecArgs args;
  args.n_parts = int(parts.size());
  args.n_in = width(parts[0].in);
  args.n_rows = rows.of(set_of(parts[0].in));
  args.x = data(parts[0].in);
  args.quant = quant_[size_t(parts[0].in)];
  for (size_t i = 0; i < parts.size(); ++i) fill_part(parts[i], args.parts[i]);
  return args;
}

void CudaExecutable::run_matmul(const std::vector<Part>& parts, const Rows& rows, size_t node) {
  const int n = rows.of(set_of(parts[0].in));
  if (n == 0) return;
  for (const Part& part : parts) groups_left_[size_t(part.out)] = 0;
  if (n > kMaxMatvecRows) return run_gemm(parts, n);
  const MatvecArgs args = product(parts, rows);
  if (n == 1 && streams(args))
    run_products(parts, args, node);
  else
    matvec(next(), args);
}

void CudaExecutable::run_products(const std::vector<Part>& parts, const MatvecArgs& product, size_t node) {
  StreamArgs args;
  args.product = product;
  args.leads = leads_.contains(node);
  args.beside = node > 0 && leads_.contains(node - 1);
  args.made_groups = groups_left_[size_t(parts[0].in)];
  if (parts.size() == 1) args.groups = quant_[size_t(parts[0].out)];
  if (args.groups.q) groups_left_[size_t(parts[0].out)] = stream_groups(product);
  if (const auto norm = norms_.find(parts[0].in); norm != norms_.end() && norm->second.fused) {
    args.norm = norm_args(norm->second, rows_);
    args.norm.second = nullptr;  // read by nobody else
    if (node != norm->second.maker) args.norm.out = nullptr;
  }
  run_stream(args);
}

NormArgs CudaExecutable::norm_args(const NormNode& norm, const Rows& rows) const {
  NormArgs args = norm.args;
  args.x = data(norm.x);
  args.residual = data(norm.residual);
  args.out = data(norm.out);
  args.second = data(norm.second);
  args.quant = quantized(norm.second == kNone ? norm.out : norm.second, rows);
  return args;
}

MatvecArgs CudaExecutable::logits_product(int n_rows) const {
  const ValueId in = logits_op_->in[0];
  MatvecArgs args;
  args.n_in = width(in);
  args.n_rows = n_rows;
  args.x = data(in);
  args.quant = quant_[size_t(in)];
  args.parts[0].w = weights_.matrices[size_t(logits_op_->w[0])];
  args.parts[0].n_out = graph_.n_vocab;
  args.parts[0].out = logits_.as<float>();
  args.parts[0].softcap = logits_op_->softcap;
  return args;
}

void CudaExecutable::run_logits(int first, int n) {
  const ValueId in = logits_op_->in[0];
  const MatrixView& w = weights_.matrices[size_t(logits_op_->w[0])];
  if (rows_.out <= kMaxMatvecRows) {
    StreamArgs args;
    args.product = logits_product(n);
    args.best = choice_.n_best > 1 ? nullptr : slot().params.as<uint64_t>() + 1;
    if (n == 1 && streams(args.product))
      run_stream(args);
    else
      matvec(next(), args.product);
    return;
  }
  half_of_ = kNone;
  gemm_rows(next(), data(in) + int64_t(first) * width(in), width(in), n, decisions_.portable_kernels,
            half_.as<uint16_t>(), half_scale_.as<float>());
  GemmArgs args = gemm_args(w.n_in, n);
  GemmPart& part = args.parts[0];
  part.w = w;
  part.out = logits_.as<float>();
  part.n_out = part.out_stride = graph_.n_vocab;
  part.softcap = logits_op_->softcap;
  gemm([this] { return next(); }, args);
}

const float* CudaExecutable::logits_on_device(int output_row) {
  if (output_row < 0 || output_row >= rows_.out)
    fail(ErrorCode::kFailed, "logits of output row {} were asked for; the step has {}", output_row,
         rows_.out);
  const size_t n_vocab = size_t(graph_.n_vocab), row_bytes = n_vocab * sizeof(float);
  const int capacity = int(logits_.size() / row_bytes);
  if (output_row < logits_first_ || output_row >= logits_first_ + logits_n_) {
    logits_first_ = output_row / capacity * capacity;
    logits_n_ = std::min(capacity, rows_.out - logits_first_);
    may_overlap_ = false;
    run_logits(logits_first_, logits_n_);
    check(cudaGetLastError(), "computing logits");
    std::fill(logits_read_.begin(), logits_read_.end(), false);
  }
  return logits_.as<float>() + size_t(output_row - logits_first_) * n_vocab;
}

std::span<const float> CudaExecutable::read(int output_row) {
  settle();
  logits_on_device(output_row);
  const size_t n_vocab = size_t(graph_.n_vocab), row_bytes = n_vocab * sizeof(float);
  const int capacity = int(logits_.size() / row_bytes);
  const bool many = rows_.out > kMaxMatvecRows;
  const size_t host_rows = size_t(many ? capacity : logits_n_);
  if (logits_host_.size() < host_rows * row_bytes) {
    logits_host_ = Memory(host_rows * row_bytes, Place::kHost, "allocating logits");
    std::fill(logits_read_.begin(), logits_read_.end(), false);
  }
  const size_t local = size_t(output_row - logits_first_);
  if (!logits_read_[local]) {
    // Many wanted rows are read in order: fetch all that are there at once.
    const size_t first = many ? 0 : local, n = many ? size_t(logits_n_) : 1;
    check(cudaMemcpyAsync(logits_host_.as<float>() + first * n_vocab, logits_.as<float>() + first * n_vocab,
                          n * row_bytes, cudaMemcpyDeviceToHost, stream_),
          "reading logits");
    check(cudaStreamSynchronize(stream_), "reading logits");
    for (size_t i = first; i < first + n; ++i) logits_read_[i] = true;
  }
  return {logits_host_.as<float>() + local * n_vocab, n_vocab};
}

// The n best keys of a row of logits, first in keys_.
void CudaExecutable::choose(const std::function<Launch()>& how, const float* logits, int n,
                            const Drawing& drawing) {
  uint64_t* best = keys_.as<uint64_t>();
  choose_best(how, logits, graph_.n_vocab, n, best + kMaxChosen, best, drawing);
}

std::span<const backends::Candidate> CudaExecutable::best(int output_row, int n) {
  if (n < 1 || n > backends::kMaxCandidates)
    fail(ErrorCode::kFailed, "{} candidates were asked for; 1 to {} can be chosen", n,
         backends::kMaxCandidates);
  n = std::min(n, graph_.n_vocab);
  settle();
  // The step of one row has chosen the first already.
  if (const uint64_t key = slot().outcome.as<uint64_t>()[1];
      n == 1 && rows_.out == 1 && output_row == 0 && key != 0 && choice_.n_best == 1) {
    candidates_ = {{key_logit(key), key_token(key)}};
    return candidates_;
  }
  choose([this] { return Launch{stream_, false}; }, logits_on_device(output_row), n, {});
  check(cudaGetLastError(), "choosing candidates");
  check(cudaMemcpyAsync(keys_host_.as(), keys_.as(), size_t(n) * sizeof(uint64_t), cudaMemcpyDeviceToHost,
                        stream_),
        "reading candidates");
  check(cudaStreamSynchronize(stream_), "choosing candidates");
  candidates_.clear();
  for (int i = 0; i < n; ++i) {
    const uint64_t key = keys_host_.as<uint64_t>()[i];
    candidates_.push_back({key_logit(key), key_token(key)});
  }
  return candidates_;
}

backends::Counters CudaExecutable::counters() const {
  backends::Counters counters = counters_;
  counters.allocations = Memory::allocations();
  return counters;
}

std::span<const float> CudaExecutable::inspect(ValueId value) {
  const bool kept = decisions_.keep_values || consumers_[size_t(value)] == 0;  // nothing takes its place
  if (!kept || !data(value)) return {};
  const size_t n = size_t(rows_.of(set_of(value))) * size_t(width(value));
  inspected_.resize(n);
  check(cudaMemcpyAsync(inspected_.data(), data(value), n * sizeof(float), cudaMemcpyDeviceToHost, stream_),
        "reading a value");
  check(cudaStreamSynchronize(stream_), "reading a value");
  return inspected_;
}

}  // namespace kvasir::cuda
