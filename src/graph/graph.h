// A model as data: a flat list of ops over activations ("values", f32 [n_rows, width]) and weights. A backend
// compiles it once; a step is a small StepParams and one submit. Nothing here knows a backend or a storage
// format's bytes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace kvasir::formats {
struct TcqTable;
}

namespace kvasir::graph {

using ValueId = int32_t;
using WeightId = int32_t;
inline constexpr int32_t kNone = -1;

// Rows of all values that an op sees: every row of the step, or only rows whose logits are wanted.
enum class RowSet : uint8_t { kAll, kOutput };

struct Value {
  std::string name;
  int width = 0;
  RowSet rows = RowSet::kAll;
};

struct Weight {
  std::string name;
  DType type{};
  int64_t n_in = 0;                 // row length (ne[0])
  int64_t n_out = 1;                // rows
  std::span<const std::byte> data;  // in the mapped file
  int source = -1;                  // index in the file's tensor list, so that the owner can drop its pages; -1: not the file's (Graph::made)
};

enum class OpKind : uint8_t {
  embed,      // out = row(token) of w0 * scale
  norm,       // out = (in1 + RMS(in0) * w0) * scale, RMS over groups of `head_dim` values (0: the whole row);
              //   in1 and w0 optional
  matmul,     // out = w0 . in0, then activation, then * in2[offset..], then + in1 (each optional)
  gated_mlp,  // out = act(w0 . in0) * (w1 . in0)
  rope,       // out = rope(RMS(in0 by heads) * w0), position of the row; out may alias in0
  kv_append,  // store in0 (keys) and in1 (values) of each row at its position in cache `kv`
  attention,  // out = softmax(scale * q.k) . v over the visible keys of cache `kv`, all heads; in0 = roped q
  per_layer_embed,  // out = (RMS_groups(w1 . in0 * scale) * w2 + row(token) of w0 * sqrt(head_dim)) /
                    // sqrt(2), groups of head_dim;
                    //   rows of w1 and columns of w0 from `offset` (a multiple of 32) on, as many as out is
                    //   wide
  select_rows,      // out = the rows of in0 whose logits are wanted
  logits,           // out = w0 . in0, then softcap * tanh(. / softcap) when softcap > 0
};

enum class Activation : uint8_t { kNone, kGeluTanh };

struct RopeSpec {
  float base = 0;
  float scale = 1;                  // multiplies the position
  int n_rot = 0;                    // pairs (i, i + n_rot/2)
  std::vector<float> freq_factors;  // n_rot/2 divisors, or empty
};

struct Op {
  OpKind kind{};
  Activation act = Activation::kNone;
  int layer = -1;  // model layer, for traces
  std::array<ValueId, 3> in{kNone, kNone, kNone};
  ValueId out = kNone;
  std::array<WeightId, 3> w{kNone, kNone, kNone};
  float scale = 1;
  float eps = 0;
  float softcap = 0;
  int offset = 0;  // matmul: first column of in2; per_layer_embed: first column made
  int n_head = 0;
  int head_dim = 0;
  int kv = -1;    // index in Graph::kv
  int rope = -1;  // index in Graph::ropes
};

// One owned KV cache (layers that share it name the same index).
struct KvSpec {
  int layer = -1;  // the owning layer
  int head_dim = 0;
  int n_kv = 0;
  int window = 0;  // 0 = global
  // Set by the engine before compile.
  DType k_type{}, v_type{};
  int exact_first = 0,
      exact_last = 0;  // pages besides a query's own that stay exact (kv_layout.h); global caches only
  std::shared_ptr<const formats::TcqTable> tcq{};  // of tbq3_tcq (formats/tcq_table.h); null: Kvasir's own
};

struct Graph {
  std::vector<Value> values;
  std::vector<Weight> weights;
  std::vector<Op> ops;
  std::vector<KvSpec> kv;
  std::vector<RopeSpec> ropes;
  std::vector<std::shared_ptr<const std::vector<float>>> made;  // values that `data` of a weight points to when they are not the file's
  ValueId logits = kNone;
  int n_vocab = 0;
};

// In place of a row's token: the one that the step before chose (backends::Backend::submit_ahead).
inline constexpr int32_t kChosenToken = -1;

// One row of a step.
struct Row {
  int32_t token = 0;  // or kChosenToken
  int32_t pos = 0;
  int32_t seq = 0;
  uint32_t want_logits = 0;
};
static_assert(sizeof(Row) == 16);

// Where the tokens of one sequence lie. A page holds 64 consecutive positions; page_table[c][pos / 64] is its
// physical index in every cache of class c (0 = global, 1 = sliding), or -1 when it is not stored. Types that
// encode whole pages (Format::open_page) also have exact pages: f16 rows in the type's own basis. Every page
// a step writes has one; it is encoded into page_table's page in the step that fills it, before any row
// attends. exact_table[c][pos / 64] is its index: below KvBuffers::n_exact in the cache, from there on in the
// executable's own memory, where it lives for this step only (at most max_rows / 64 of them); -1 when there
// is none.
struct SequenceView {
  std::array<std::span<const int32_t>, 2> page_table;
  std::array<std::span<const int32_t>, 2> exact_table;
  int32_t shift = 0;       // positions in pages >= keep_pages were roped at pos + shift
  int32_t keep_pages = 0;  // pages before this one were roped at their own pos
  // First position from which every page of the class is stored; older keys are invisible (a shift may bring
  // an evicted prefix back within a window).
  std::array<int32_t, 2> first_pos{0, 0};
};

// Everything a step needs. Rows of one sequence are contiguous and in rising position.
struct StepParams {
  std::span<const Row> rows;
  std::span<const SequenceView> sequences;  // indexed by Row::seq
};

inline constexpr int kPageTokens = 64;

}  // namespace kvasir::graph
