// Attention over the paged KV cache, and writing to it.
//
//   out[r][h] = sum_j p_j v_j,  p = softmax_j( cap(scale * q[r][h] . k_j) ),  cap(x) = c * tanh(x / c) when c
//   > 0
// over the keys j visible to row r: pos_j <= pos_r and (window == 0 or pos_r - pos_j < window). Query head h
// reads KV head h / (n_head / n_kv).
//
// Keys are taken in chunks of 256 (4 pages), aligned by position. A chunk gives (max, sum, out) of its own;
// chunks merge in index order. So the bits of a row depend neither on the rows beside it, nor on the batch,
// nor on the threads. Bound: decode reads every visible K and V once per KV head; prefill costs 4 * head_dim
// * visible pairs flops a head.
//
// Page of a cache (64 tokens), for each KV head: all keys, then all values; see page layout in kv_page.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "formats/format.h"
#include "graph/graph.h"

namespace kvasir::cpu {

inline constexpr int kMaxHeadDim = 512;

struct AttentionVariant;  // one row of variants.def: (K type, V type, ISA), any head_dim listed there

// Exact pages of one cache (graph.h SequenceView): the first n_cached lie in the cache, the rest in the
// step's memory. A page holds, for each KV head, the f16 region of its keys and then of its values
// (kv_page.h), each only when that side's type encodes whole pages.
struct ExactPages {
  std::byte* cached = nullptr;
  std::byte* staged = nullptr;
  int n_cached = 0;
  size_t page_bytes = 0;

  std::byte* page(int32_t index) const {
    return index < n_cached ? cached + size_t(index) * page_bytes
                            : staged + size_t(index - n_cached) * page_bytes;
  }
};

// Rows of ONE sequence, contiguous, rising positions.
struct AttentionArgs {
  const AttentionVariant* variant = nullptr;
  const float* q = nullptr;  // [n_rows][n_head * head_dim], roped at pos
  const float* q_shifted =
      nullptr;             // the same roped at pos + shift; used for pages >= keep_pages when not null
  bool q_rotated = false;  // q and q_shifted are in the basis of the key type already
  int64_t q_stride = 0;    // floats
  float* out = nullptr;    // [n_rows][n_head * head_dim]
  int64_t out_stride = 0;
  const graph::Row* rows = nullptr;
  int n_rows = 0;
  std::span<const int32_t> page_table;   // pos / 64 -> physical page
  std::span<const int32_t> exact_table;  // pos / 64 -> exact page, or -1
  ExactPages exact;
  int exact_first = 0, exact_last = 0;  // graph::reads_exact
  int keep_pages = 0;
  int first_pos = 0;  // keys before it are no longer stored and count as invisible
  const std::byte* pages = nullptr;
  size_t page_bytes = 0;
  int n_head = 0, n_kv = 0, head_dim = 0, window = 0;
  float scale = 1, softcap = 0;
  const formats::TcqTable* tcq = nullptr;  // of tbq3_tcq; null: Kvasir's own
};

// Into the basis of a key type, rows of head_dim values; nullptr when that is the model's own.
using Rotation = void (*)(formats::Role side, const float* x, float* out, int64_t n);
Rotation query_rotation(DType k, Isa isa);

// nullptr when that pair or head size is not built for `isa` or below; `why` then says required / supported /
// missing. `flash` false selects the plain path: raw scores of all visible keys, one softmax, one weighted
// sum.
const AttentionVariant* find_attention(DType k, DType v, int head_dim, Isa isa, bool flash, std::string* why);
const char* attention_name(const AttentionVariant& variant);  // "f16/f16.flash.avx512"

// Every variant this CPU can run and every head size they take, for tests and benchmarks.
struct AttentionInfo {
  const AttentionVariant* variant;
  DType k, v;
  Isa isa;
  bool flash;
};
std::vector<AttentionInfo> attention_variants();
std::span<const int> attention_head_dims();

// The work of one attention call as independent items in two phases; a barrier lies between them. Everything
// depends on shape and positions only.
struct AttentionPlan {
  int64_t n_items[2] = {0, 0};
  size_t shared_bytes = 0;  // scratch shared by all threads (partials of split chunks)
  size_t thread_bytes = 0;  // scratch each thread needs
};
AttentionPlan plan_attention(const AttentionArgs& args);
// An upper bound of both scratch sizes for up to max_rows rows and n_ctx positions.
AttentionPlan bound_attention(const AttentionArgs& shape, int max_rows, int n_ctx);
void run_attention(const AttentionArgs& args, const AttentionPlan& plan, int phase, int64_t item,
                   std::byte* shared, std::byte* thread_scratch);

// Stores keys and values of rows [begin, end) at their positions: in the page itself, or, for types that
// encode whole pages, as f16 rows of its exact page in the type's basis. Returns the first row whose key or
// value is not finite or overflows what stores it, or -1.
struct AppendArgs {
  DType k_type{}, v_type{};
  const float* k = nullptr;  // [n_rows][n_kv * head_dim]
  const float* v = nullptr;
  int64_t k_stride = 0, v_stride = 0;
  const graph::Row* rows = nullptr;  // any sequences
  std::span<const graph::SequenceView> sequences;
  int table_class = 0;  // 0 global, 1 sliding
  std::byte* pages = nullptr;
  size_t page_bytes = 0;
  int n_kv = 0, head_dim = 0;
  ExactPages exact;
  const formats::TcqTable* tcq = nullptr;  // as in AttentionArgs
};
int append_rows(Isa isa, const AppendArgs& args, int begin, int end);

// Encodes page `logical` of sequence `seq`, all 64 rows of which are in its exact page: side 0 keys, 1 values
// (a side that is not encoded by pages has nothing to do).
void commit_page(Isa isa, const AppendArgs& args, int seq, int logical, int kv_head, int side);

}  // namespace kvasir::cpu
