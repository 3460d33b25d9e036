// Heads: RMS norm, rotary turn, rotation into the basis of the keys' type, and the write into the KV cache.
// And the encoding of a full page from its exact rows; bytes are the scalar codec's. Bound: one read and one
// write of each head.
#pragma once
#include "backends/cuda/kernels/args.h"

namespace kvasir::cuda {

struct HeadJob {
  const float* in = nullptr;     // [n_rows][n_head * head_dim]
  float* out = nullptr;          // the result, or null
  float* out_shifted = nullptr;  // queries: the same turned at pos + shift, or null
  const float* w = nullptr;      // norm weight, or null
  const float* turns = nullptr;  // of fill_rope_table, or null: no turn
  int n_pairs = 0, half = 0, max_rows = 0;
  int n_head = 0;
  int side = -1;  // 0: stored as keys, 1: as values
  bool norm = false;
  KvBasis basis = KvBasis::kModel;  // queries: that of the keys
  bool output_rows = false;         // rows are those whose logits are wanted
  float eps = 0, scale = 1;
};

struct HeadArgs {
  HeadJob jobs[3];
  int n_jobs = 0;
  int head_dim = 0;
  int layer = -1;
  KvView kv;
  // {layer, step row} of the first value that the cache cannot hold; layer -1: none, kWideTiles: none, but a
  // value of a tile that f16 cannot hold in units of 1.
  int32_t* fault = nullptr;
  // Rows follow each other in one sequence and begin a page: those before position `full` fill pages of this
  // step, and are encoded at once where that takes no search. 0: encode_pages() does it.
  int full = 0;
  PageTiles tiles;  // with tiles.tiles: their tiles are made, too, by whoever encodes them
};
inline constexpr int32_t kWideTiles = -2;

// `encode`: no two rows of the step write the same page, so a page that a row fills is encoded at once, where
// its type takes no search. With that and with args.full encode_pages has only the others left.
void run_heads(const Launch& how, const HeadArgs& args, const StepView& step, int n_rows, bool encode);
// Is there anything left to encode after run_heads(.., encode), or args.full?
bool needs_encode(const KvView& kv, bool encode);
// Encodes the page of every row that is the last of its page; `encoded`: nothing is left but what takes a
// search. args: kv, layer, fault, full and tiles.
void encode_pages(const Launch& how, const HeadArgs& args, const StepView& step, int n_rows, bool encoded);
// Types whose tiles can be made row by row.
constexpr bool makes_tiles(const KvView& kv) {
  return open_page(kv.k_form) && open_page(kv.v_form) && kv.k_form != KvForm::kQjl1_256;
}

// Caches whose full pages are encoded together, in device memory.
struct EncodeView {
  KvView kv;
  int layer = -1;
};
struct EncodeViews {
  const EncodeView* views = nullptr;
  int n = 0, max_kv = 0;  // KV heads of any of them
};
// The same for the pages that at most 16 rows fill, each its own, one launch for all caches. `search`: caches
// with a side that is slow to encode.
void encode_pages_of(const Launch& how, const EncodeViews& views, bool search, const StepView& step,
                     int n_rows, int32_t* fault);

}  // namespace kvasir::cuda
