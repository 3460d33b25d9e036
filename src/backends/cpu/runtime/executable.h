// A graph compiled for this CPU: a flat list of phases with a barrier between them. Row-wise ops that follow
// each other share one phase (a task is a block of rows), matmuls that share an input share one phase,
// attention has two.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/kernels/attention/attention.h"
#include "backends/cpu/kernels/elementwise/elementwise.h"
#include "backends/cpu/kernels/matmul/matmul.h"
#include "backends/cpu/runtime/rope_table.h"
#include "backends/cpu/runtime/weights.h"
#include "base/thread_pool.h"

namespace kvasir::cpu {

class CpuExecutable final : public backends::Executable {
 public:
  CpuExecutable(const graph::Graph& graph, const std::vector<PreparedWeight>& weights,
                const backends::Decisions& decisions, const backends::KvBuffers& kv, int max_rows, Isa isa,
                ThreadPool& pool);

  int max_rows() const override { return max_rows_; }
  std::vector<std::string> describe() const override;
  void submit(const graph::StepParams& step) override;
  std::span<const float> read(int output_row) override;
  std::span<const float> inspect(graph::ValueId value) override;
  std::vector<backends::TraceRow> trace() const override { return trace_; }

 private:
  enum class PhaseKind : uint8_t { kRope, kRows, kMatmul, kCommit, kAttention };
  // One matrix (or a gated pair) of a matmul phase.
  struct MatmulPart {
    const PackedMatrix* w = nullptr;
    const PackedMatrix* gate_up = nullptr;  // gated: out = act(w x) * (gate_up x)
    graph::ValueId in = graph::kNone, out = graph::kNone, mul = graph::kNone, residual = graph::kNone;
    int offset = 0;  // first column of mul
    graph::Activation act{};
    int64_t panel = 0;  // first panel of w that is used; as many as out is wide
  };
  struct Phase {
    PhaseKind kind{};
    graph::RowSet rows{};
    std::vector<int> ops;  // kRows: row-wise ops in order; kAttention: one; kCommit: one kv_append
    std::vector<graph::ValueId> quantize;  // kRows: values to quantise after the ops
    std::vector<MatmulPart> parts;         // kMatmul
    int sub = 0;                           // kAttention: 0 or 1
  };
  struct Segment {  // rows of one sequence inside one attention op
    AttentionArgs args;
    AttentionPlan plan;
    size_t shared_offset = 0;
  };
  struct FullPage {  // a page that the step fills
    int seq, logical;
  };
  struct Scratch {
    AlignedBuffer acc, acc2, attention;
  };

  // compile.cpp
  void build_phases();
  Phase& row_phase(graph::RowSet rows, bool fresh);
  void add_matmul_phase(const graph::Op& op, MatmulPart part);
  void add_commit_phase(int kv);
  void plan_memory();
  void choose_attention();
  void place_rotations();
  bool wants_int8(const PackedMatrix& w) const {
    return activation_form(*w.variant) == ActivationForm::kInt8;
  }

  // executable.cpp
  void prepare(const graph::StepParams& step);
  void prepare_attention(int op_index);
  void find_full_pages();
  AppendArgs append_args(const graph::Op& op) const;
  ExactPages exact_pages(int kv) const;
  void run_phase(const Phase& phase, size_t index, int thread);
  void run_rows(const Phase& phase, int begin, int end);
  void run_row_op(const graph::Op& op, int begin, int end);
  void run_append(const graph::Op& op, int begin, int end);
  void run_rope(const graph::Op& op, int begin, int end);
  void run_per_layer(const graph::Op& op, int begin, int end);
  void run_matmul(const Phase& phase, TaskCounter& next, int thread);
  void matmul_block(const MatmulPart& part, int64_t panel, int tile, int thread);
  Activations activations(const MatmulPart& part, int tile) const;
  int n_rows(graph::RowSet set) const {
    return set == graph::RowSet::kAll ? n_all_ : int(output_rows_.size());
  }
  const graph::Row* rows_of(graph::RowSet set) const {
    return set == graph::RowSet::kAll ? rows_.data() : out_rows_.data();
  }
  float* data(graph::ValueId v) { return value_data_[size_t(v)]; }
  const float* data(graph::ValueId v) const { return value_data_[size_t(v)]; }
  int width(graph::ValueId v) const { return graph_.values[size_t(v)].width; }

  graph::Graph graph_;
  const std::vector<PreparedWeight>& weights_;
  backends::Decisions decisions_;
  backends::KvBuffers kv_;
  int max_rows_;
  Isa isa_;
  ThreadPool& pool_;
  const ElementwiseKernels& kernels_;

  std::vector<Phase> phases_;
  std::vector<RopeTable> ropes_;
  std::vector<const AttentionVariant*> attention_;  // by graph op index
  std::vector<bool> is_query_;                      // by value: attention reads it as q
  std::vector<Rotation> query_rotation_;            // by value that rope makes: into the basis of the keys it meets, or null
  std::vector<bool> rotates_query_;                 // by graph op index: the attention's query comes in its keys' basis
  std::vector<float*> value_data_;
  std::vector<std::byte*> quantized_;  // by value, null when not needed
  std::vector<std::byte*> staged_;     // by kv: exact pages that outlive no step
  std::vector<AlignedBuffer> arenas_;
  AlignedBuffer shifted_[2];  // q roped at pos + shift: before and after select_rows
  std::vector<Scratch> scratch_;
  AlignedBuffer attention_shared_;
  std::unique_ptr<TaskCounter[]> counters_;

  // The step in flight.
  int n_all_ = 0;
  bool any_shift_ = false;
  std::vector<graph::Row> rows_, out_rows_;
  std::vector<int> output_rows_;
  std::vector<graph::SequenceView> sequences_;
  std::vector<std::vector<Segment>> segments_;  // by graph op index
  std::vector<FullPage> full_pages_;
  std::atomic<int> bad_layer_{-1};
  std::atomic<int> bad_row_{-1};
  const graph::Op* logits_op_ = nullptr;
  AlignedBuffer logits_;
  int logits_begin_ = -1, logits_end_ = -1;
  std::vector<backends::TraceRow> trace_;
};

}  // namespace kvasir::cpu
