// A graph compiled for the device: a list of nodes, each one or two launches. Steps of up to kMaxMatvecRows
// rows become one CUDA graph a (rows, output rows) pair; larger ones are enqueued node by node.
#pragma once
#include <compare>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/kernels/attention/attention.h"
#include "backends/cuda/kernels/choose/choose.h"
#include "backends/cuda/kernels/elementwise/elementwise.h"
#include "backends/cuda/kernels/gemm/gemm.h"
#include "backends/cuda/kernels/kv_append/kv_append.h"
#include "backends/cuda/kernels/kv_forms/dtypes.h"
#include "backends/cuda/kernels/matvec/matvec.h"
#include "backends/cuda/kernels/near/near.h"
#include "backends/cuda/runtime/weights.h"

namespace kvasir::cuda {

class CudaExecutable final : public backends::Executable {
 public:
  CudaExecutable(const graph::Graph& graph, const DeviceWeights& weights,
                 const backends::Decisions& decisions, const backends::KvBuffers& kv, int max_rows,
                 cudaStream_t stream, std::string isa);
  ~CudaExecutable() override;

  int max_rows() const override { return max_rows_; }
  std::vector<std::string> describe() const override;
  // Ends when the device has run the step: a value that the cache cannot hold is an error of this step.
  void submit(const graph::StepParams& step) override;
  bool chooses() const override;
  void submit_ahead(const graph::StepParams& step, const graph::Choice& choice) override;
  int32_t chosen() override;
  std::span<const float> read(int output_row) override;
  std::span<const backends::Candidate> best(int output_row, int n) override;
  std::span<const float> inspect(graph::ValueId value) override;
  std::vector<backends::TraceRow> trace() const override { return trace_; }
  backends::Counters counters() const override;

 private:
  // Rows of the step being enqueued.
  struct Rows {
    int all = 0, out = 0;
    bool own_pages = false;  // no two rows write the same page
    // Their heads go through the small kernel, and pages that they fill are encoded after the last layer:
    // until then only rows of the same page read them.
    bool few() const { return all <= kMaxMatvecRows && own_pages; }
    bool shifted = false;   // a sequence has keys that were turned at pos + shift
    bool fills = false;     // one of them is the last of a page that is encoded
    int full = 0;           // of a prompt that begins a page: rows before that position fill pages
    bool all_near = false;  // no row sees more than kNearKeys keys in any layer
    int of(graph::RowSet set) const { return set == graph::RowSet::kAll ? all : out; }
  };
  struct Node {
    std::string name;
    int layer = -1;
    std::vector<graph::ValueId> touches;  // for the memory plan
    std::function<void(const Rows&)> run;
    double bytes = 0;                       // of weights read
    graph::ValueId streams = graph::kNone;  // of products that may stand beside others of this row: the row
  };
  // What one step brings and leaves; two, because one can be written while the other is on its way.
  struct Slot {
    Memory params_host, params;
    // The first 16 bytes of params after the step: fault, key of the token chosen after it. Before the step
    // the key is 0, or the random number that decides.
    Memory outcome;
    std::vector<graph::Row> rows;
    cudaEvent_t done = nullptr;
  };
  // What the launches of a small step depend on.
  struct StepKind {
    int slot, rows, wanted;
    bool own_pages, shifted, all_near, fills;  // of Rows
    int candidates;                            // to draw from; 1: the best
    auto operator<=>(const StepKind&) const = default;
  };
  // A launch that makes heads. An attention node right after it can make them itself (runs_near).
  struct HeadsNode {
    struct Made {
      HeadJob job;
      graph::ValueId in, out;
      bool query;
    };
    HeadArgs args;  // without data
    std::vector<Made> made;
    bool stores = false;                      // into args.kv
    graph::ValueId attention = graph::kNone;  // what that node leaves
    int attention_kv = -1;
    int kv = -1;  // of the attention after it that has all rows and reads what it stores
  };
  // One matrix (or a gated pair) of a matmul node.
  struct Part {
    graph::WeightId w = graph::kNone, w2 = graph::kNone;
    graph::ValueId in = graph::kNone, out = graph::kNone, mul = graph::kNone, residual = graph::kNone;
    int mul_offset = 0, first_row = 0;
    bool gelu = false;
  };
  // A norm (or pair) that a matmul of one row can make itself.
  struct NormNode {
    NormArgs args;  // without data
    graph::ValueId x = graph::kNone, residual = graph::kNone, out = graph::kNone, second = graph::kNone;
    size_t node = 0;     // its place in nodes_
    size_t maker = 0;    // the matmul node after it that can make it when there is one row
    int made_for = 0;    // matmul ops that can
    bool fused = false;  // they are all that need it: it has no launch of its own then
  };

  // compile.cpp
  void build_nodes();
  size_t add_norm(size_t at);
  size_t add_heads(size_t at);
  HeadsNode::Made make_heads(const graph::Op& op) const;
  void store_heads(const graph::Op& op, std::vector<HeadsNode::Made>& made) const;
  size_t add_matmul(size_t at);
  void add_matmul_node(const graph::Op& op, std::vector<Part> parts, std::string name);
  void note_lead(const std::vector<Part>& parts, bool streamed);
  void add_per_layer(const graph::Op& op);
  void add_attention(const graph::Op& op);
  bool add_near(const graph::Op& op, NearArgs& near);
  bool comes_from_rope(graph::ValueId q) const;
  float* add_rotation(const graph::Op& attention);
  void fuse_norms();
  void add_node(std::string name, int layer, std::vector<graph::ValueId> touches,
                std::function<void(const Rows&)> run);
  void need_int8(graph::ValueId v);
  bool feeds_int8(graph::ValueId v) const;
  QuantRows quantized(graph::ValueId v, const Rows& rows) const;
  void plan_memory();
  void allocate_scratch();
  void prepare_ropes();
  void prepare_kv();
  void size_attention();

  // executable.cpp
  void start(const graph::StepParams& step);
  cudaGraphExec_t capture();  // of the step that start() prepared
  void forget_graphs(const std::function<bool(const StepKind&)>& which);
  const Slot& slot() const { return slots_[size_t(slot_)]; }
  Slot& slot() { return slots_[size_t(slot_)]; }
  // Of Slot::params: fault and best key, sequences, the rows of the step, which of them are wanted.
  size_t out_rows_at() const { return rows_at_ + size_t(rows_.all) * sizeof(graph::Row); }
  void upload_params();
  void settle();  // waits for what is queued
  void check_outcome(const Slot& slot) const;
  void write_params(const graph::StepParams& step, Rows& rows);
  void write_tables(const graph::StepParams& step);
  void grow_tables(int n_pages);
  void encode_step(const Rows& rows);
  void enqueue(const Rows& rows);
  void enqueue_traced(const Rows& rows);
  void run_logits(int first, int n);
  void set_choice(const graph::Choice& choice);
  void choose(const std::function<Launch()>& how, const float* logits, int n, const Drawing& drawing);
  MatvecArgs logits_product(int n_rows) const;
  const float* logits_on_device(int output_row);
  void run_matmul(const std::vector<Part>& parts, const Rows& rows, size_t node);
  // What a MatvecPart and a GemmPart have alike.
  template <typename To>
  void fill_part(const Part& from, To& to) const;
  MatvecArgs product(const std::vector<Part>& parts, const Rows& rows) const;
  void run_products(const std::vector<Part>& parts, const MatvecArgs& product, size_t node);
  void run_stream(StreamArgs args);
  NormArgs norm_args(const NormNode& norm, const Rows& rows) const;
  HeadArgs head_args(const HeadsNode& heads) const;
  bool runs_near(const Rows& rows, int kv, graph::ValueId out) const;
  GemmArgs gemm_args(int n_in, int n_rows) const;
  void run_gemm(const std::vector<Part>& parts, int n_rows);
  void attend_by_sequence(const AttentionArgs& args, int kv, int n_rows);
  PageTiles tiles_of(const KvView& kv, int seq, int oldest, int newest) const;
  void place_tiles(const HeadsNode& heads, const Rows& rows, HeadArgs& args);
  void to_half(graph::ValueId v, int n_rows);
  bool streams(const MatvecArgs& product) const {
    return !decisions_.portable_kernels && can_stream(product);
  }
  Launch next();  // overlap with whatever was launched before it
  StepView step_view() const;
  float* data(graph::ValueId v) const { return v == graph::kNone ? nullptr : value_data_[size_t(v)]; }
  WeightForm form_of(graph::WeightId w) const { return weights_.matrices[size_t(w)].form; }
  int width(graph::ValueId v) const { return graph_.values[size_t(v)].width; }
  graph::RowSet set_of(graph::ValueId v) const { return graph_.values[size_t(v)].rows; }

  graph::Graph graph_;
  const DeviceWeights& weights_;
  backends::Decisions decisions_;
  backends::KvBuffers kv_buffers_;
  int max_rows_;
  cudaStream_t stream_;
  std::string isa_;

  std::vector<Node> nodes_;
  std::map<graph::ValueId, NormNode> norms_;  // by last output
  std::set<size_t> leads_;  // nodes of products after which one of the same row follows (StreamArgs::leads)
  std::deque<HeadsNode> heads_;
  std::map<graph::ValueId, size_t> heads_of_;  // by queries: in heads_, when they are the node added last
  std::vector<KvView> kv_;
  EncodeViews open_kv_[2];  // the caches of kv_ whose pages are encoded when they are full; [1]: by a search
  std::vector<RopeTableArgs> ropes_;
  std::vector<int> consumers_;  // by value
  std::vector<bool> int8_;      // by value: its quantised rows are made
  std::vector<bool> int8_one_;  // and for one row too: a matmul that reads it cannot make them itself
  std::vector<float*> value_data_;
  std::vector<QuantRows> quant_;
  std::vector<int> groups_left_;  // by value: of its row in quant_, by the launch that made it (of one row)
  std::vector<float*> shifted_;   // by value: queries turned at pos + shift
  std::vector<Memory> memory_;
  Memory half_, half_scale_, expanded_, shares_, partial_, partial_sums_;
  Memory page_tiles_, page_units_;  // pages as a prompt's attention reads them, a layer at a time
  // Whose the heads before an attention have left there, and from which page on.
  int tiles_kv_ = -1, tiles_made_ = 0;
  bool wide_tiles_ = false;  // a value of this step needs tiles in other units: expand_pages() makes them
  graph::ValueId half_of_ = graph::kNone;  // whose rows half_ holds while a step is enqueued
  const graph::Op* logits_op_ = nullptr;

  Slot slots_[2];
  int slot_ = 0, n_ahead_ = 0;
  Memory tables_host_, tables_;
  size_t params_bytes_ = 0, rows_at_ = 0;
  int table_stride_ = 0;
  bool may_overlap_ = false;
  bool large_next_ = true;                      // StreamArgs::large of the next product
  std::map<StepKind, cudaGraphExec_t> graphs_;  // null: seen once
  graph::Choice choice_, drawn_by_;  // after the step being enqueued; of the captured launches that draw
  Rows rows_;
  Memory logits_, logits_host_;
  Memory keys_, keys_host_;  // candidates: the best and scratch on the device; the best here
  std::vector<backends::Candidate> candidates_;
  int logits_first_ = 0, logits_n_ = 0;
  std::vector<bool> logits_read_;
  std::vector<float> inspected_;
  std::vector<backends::TraceRow> trace_;
  backends::Counters counters_;
};

}  // namespace kvasir::cuda
