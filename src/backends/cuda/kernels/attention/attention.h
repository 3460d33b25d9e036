// Attention over the paged KV cache:
//   out[r][h] = sum_j p_j v_j,  p = softmax_j( cap(scale * q[r][h] . k_j) ),  cap(x) = c * tanh(x / c) when c
//   > 0
// over the keys j visible to row r: pos_j <= pos_r, pos_j >= first_pos, and (window == 0 or pos_r - pos_j <
// window). Query head h reads KV head h / (n_head / n_kv). A page is read exactly or encoded as
// graph::reads_exact says.
//
// Work is split over the pages a row sees: `n_splits` parts leave (max, sum, weighted values) each, which
// merge in order. The number of parts is a constant of the launch; how many have work is read from the step
// on the device. Bound: decode reads every visible K and V once per KV head; prefill costs 4 * head_dim *
// visible pairs flops a head.
#pragma once
#include <functional>

#include "backends/cuda/kernels/args.h"

namespace kvasir::cuda {

struct AttentionArgs {
  KvView kv;
  const float* q = nullptr;          // [n_rows][n_head * head_dim], in the basis of the keys
  const float* q_shifted = nullptr;  // for pages from keep_pages on of a sequence with a shift
  float* out = nullptr;              // [n_rows][n_head * head_dim], in the model's basis
  QuantRows quant;                   // its int8 groups; q null: none
  float* partial = nullptr;          // [n_rows][n_head][n_splits][head_dim]
  float* partial_sums = nullptr;     // [n_rows][n_head][n_splits][2]: (max, sum)
  int n_head = 0;
  int n_rows = 0;
  int n_splits = 1;
  int max_pages = 0;  // that a row can see, for the parts that have work
  bool output_rows = false;
  bool settled = false;  // the step has one row: pages but its own are as earlier steps left them
  bool resumed = false;  // parts hold what earlier pages gave
  PageTiles expanded;    // kPrompt: rows of one sequence, what they see; tiles null where none are needed
  float scale = 1, softcap = 0;
};

// Of the first row, where rows follow each other up to expanded.newest: blocks of rows begin where pages do.
inline int first_position(const AttentionArgs& args) {
  const int first = args.expanded.newest + 1 - args.n_rows;
  return first > 0 ? first : 0;
}

// How it is computed. kPlain: in f32 on the ordinary units, every cache. The others on the matrix units:
// kTiles expands f16 tiles in shared memory (sm_80 and later), kDecode takes a few rows and codes as they
// are, kPrompt many rows by warp groups.
enum class AttentionKernel : uint8_t { kPlain, kTiles, kDecode, kPrompt };
// The fastest one that takes this cache and that many rows, among those asked for: `flash` false: kPlain,
// `portable`: none that needs more than sm_80 has.
AttentionKernel choose_attention(const KvView& kv, int n_rows, bool flash, bool portable);
// kPrompt makes PageTiles of this cache.
bool needs_page_tiles(const KvView& kv);
// True when f16 tiles hold both types: kTiles takes them.
bool has_flash(const KvView& kv);
// Parts for that many rows: enough blocks to fill the device.
int attention_splits(const KvView& kv, int n_head, int n_rows, int max_pages, AttentionKernel kernel);
// Leaves the merged rows in args.out and args.quant; several launches, `more` is asked for those after the
// first.
void attend(const Launch& how, const AttentionArgs& args, const StepView& step, AttentionKernel kernel,
            const std::function<Launch()>& more);

}  // namespace kvasir::cuda
