// What the ISA files of attention offer to the dispatcher. Producers (one for a key type, one for a value
// type) hide the format; the flash body that consumes them does not know it. F key files + F value files
// serve F x F pairs.
#pragma once
#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels/attention/attention.h"
#include "backends/cpu/kernels/attention/kv_page.h"
#include "formats/head_wide.h"

namespace kvasir::cpu {

inline constexpr int kChunk = 256;  // keys a chunk
inline constexpr int kSpanChunks =
    8;  // chunks a span; chunks merge into spans, spans into the result, in index order
inline constexpr int kBlockRows = 64;  // query rows (tokens x heads of one KV head) a work item takes at most
inline constexpr int kGroupKeys = 32;  // keys a score call takes

// Where the next bytes to be read lie. Four streams, because one core's prefetches reach the memory's rate
// only through the hardware's own, which follows each 4 KiB page apart.
struct Streams {
  const char* at[4];
};

// Consecutive query rows of a block that share a register tile, and the union [lo, hi) of the positions they
// see.
struct RowTile {
  int row = 0, n = 0;
  int lo = 0, hi = 0;
  int page = 0;  // of its rows' own positions; one for all where exact pages exist
};

// Scores of 32 keys. `scores` is row 0 of the block at the group's column; rows are kChunk floats apart.
struct ScoreTask {
  const std::byte* keys;  // key region of the page
  int group;              // 0 or 1: which 32 keys of the page
  int head_dim;
  const std::byte* query;  // packed by the same producer
  const RowTile* tiles;
  int n_tiles;
  // What is read after this group, for prefetching: group `next_group` of the key region `next`, or, when
  // that is null, the value regions of the chunk's pages (never null).
  const std::byte* next;
  int next_group;
  const std::byte* values[4];
  float* scores;
  std::byte* scratch;                      // kProducerScratch bytes
  const formats::TcqTable* tcq = nullptr;  // of tbq3_tcq; null: Kvasir's own
};

// Visible values of one page: region of the page, keys [first, first + n) of it, at column `column` of the
// weights.
struct ValuePiece {
  const std::byte* values;
  int first, n, column;
};

// out[row] = out[row] * keep[row] + blend[row] * sum_j weights[row][j] * value_j, for one chunk.
struct MixTask {
  ValuePiece pieces[4];  // pages of the chunk, clipped to [lo, hi) of all tiles
  int n_pieces;
  int head_dim;
  const RowTile* tiles;
  int n_tiles;
  const int* lo;  // positions [lo, hi) each row sees, [kBlockRows]
  const int* hi;
  int chunk_begin;                         // position of column 0
  const float* weights;                    // [kBlockRows][kChunk], zero where a row sees nothing
  const float* keep;                       // [kBlockRows]
  const float* blend;                      // [kBlockRows]
  const std::byte* next_keys;              // key region that is read after this chunk, or null
  float* out;                              // [kBlockRows][head_dim], in the order of the producer
  std::byte* scratch;                      // kProducerScratch bytes
  const formats::TcqTable* tcq = nullptr;  // as in ScoreTask
};

inline constexpr size_t kProducerScratch = 256 * 1024;

struct KeyProducer {
  DType type;
  size_t (*query_bytes)(int head_dim);  // of a block of kBlockRows rows
  // The query transform: scales and packs the tile's rows (`q[i]` is row tile.row + i).
  void (*pack_query)(const float* const* q, const RowTile& tile, int head_dim, float scale,
                     std::byte* packed);
  void (*score)(const ScoreTask& task);
};

struct ValueProducer {
  DType type;
  void (*mix)(const MixTask& task);
  int stripes =
      1;  // its outputs lie as [head_dim / stripes][stripes], dimension d in stripe d / (head_dim / stripes)
};

// x [rows][columns] to out [columns][rows]: multiples of 4, or one row or column.
inline void transpose(const float* x, int rows, int columns, float* out) {
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  if (rows == 1 || columns == 1)
    return void(__builtin_memcpy(out, x, sizeof(float) * size_t(rows * columns)));
  const auto load = [&](int r, int c) { return *reinterpret_cast<const Four*>(x + r * columns + c); };
  for (int r = 0; r < rows; r += 4)
    for (int c = 0; c < columns; c += 4) {
      const Four a = load(r, c), b = load(r + 1, c), d = load(r + 2, c), e = load(r + 3, c);
      const Four ad0 = __builtin_shufflevector(a, d, 0, 4, 1, 5),
                 ad1 = __builtin_shufflevector(a, d, 2, 6, 3, 7);
      const Four be0 = __builtin_shufflevector(b, e, 0, 4, 1, 5),
                 be1 = __builtin_shufflevector(b, e, 2, 6, 3, 7);
      const Four columns_of[4] = {
          __builtin_shufflevector(ad0, be0, 0, 4, 1, 5), __builtin_shufflevector(ad0, be0, 2, 6, 3, 7),
          __builtin_shufflevector(ad1, be1, 0, 4, 1, 5), __builtin_shufflevector(ad1, be1, 2, 6, 3, 7)};
      for (int k = 0; k < 4; ++k) *reinterpret_cast<Four*>(out + (c + k) * rows + r) = columns_of[k];
    }
}
// Between the order of a producer's outputs and that of the dimensions.
inline void to_stripes(const float* x, int head_dim, int stripes, float* out) {
  transpose(x, stripes, head_dim / stripes, out);
}
inline void from_stripes(const float* x, int head_dim, int stripes, float* out) {
  transpose(x, head_dim / stripes, stripes, out);
}

// One work item: rows [row, row + n_rows) of KV head `kv_head` over chunks [chunk_begin, chunk_end). With
// `partial` the unnormalised state (m[n_rows], l[n_rows], out[n_rows][head_dim]) goes there, else the result
// to args.out. More than one part: part i is that of chunk part_chunk + i alone, `part_stride` floats apart.
struct FlashItem {
  const AttentionArgs* args;
  const KeyProducer* keys;
  const ValueProducer* values;
  const KeyProducer* exact_keys;      // of exact pages; null where there are none
  const ValueProducer* exact_values;  // likewise
  size_t key_row;                     // bytes of a key
  // Into the basis of the keys, and back from that of the values; null where that is the model's own.
  void (*rotate)(formats::Role side, const float* x, float* out, int64_t n);
  void (*unrotate)(formats::Role side, const float* r, float* out, int64_t n);
  int kv_head, row, n_rows;
  int chunk_begin, chunk_end;
  float* partial;
  int n_parts, part_chunk;
  size_t part_stride;
};

// Merges the partials of one query row. Partial u covers chunks [chunk_begin + u * unit, ...), unit 1 or
// kSpanChunks.
struct MergeItem {
  int head_dim;
  int first_chunk, unit, n_units;
  const float* m;  // m[u * stride], l[u * stride]
  const float* l;
  const float* out;                                                             // out[u * stride ..]
  size_t stride;                                                                // floats between units
  float* result;                                                                // [head_dim]
  int stripes;                                                                  // of `out`: ValueProducer
  void (*unrotate)(formats::Role side, const float* r, float* out, int64_t n);  // as in FlashItem
};

// The plain path: rows [row, row + n_rows) of args, all heads of one KV head.
struct PlainItem {
  const AttentionArgs* args;
  DType k_type, v_type;
  int kv_head, row, n_rows;
};
// Rows an item takes, so that a page is spread to floats once for all of them; fewer where `n_keys` scores a
// row are many.
inline constexpr int kPlainRows = 16;
inline int plain_rows(int group_heads, int n_keys) {
  constexpr int64_t kScores = int64_t(1) << 20;
  const int64_t fit = kScores / (int64_t(group_heads) * (n_keys > 0 ? n_keys : 1));
  return fit < 1 ? 1 : fit < kPlainRows ? int(fit) : kPlainRows;
}

// The part of an ISA's kernels for types that are expanded first (image_source.h).
struct ImageKernels {
  const KeyProducer* (*keys)(DType type);  // nullptr when there is none
  const ValueProducer* (*values)(DType type);
  void (*encode_page)(DType type, KvSide side, int head_dim, const std::byte* exact, std::byte* region,
                      const formats::TcqTable* tcq);
};

struct AttentionKernels {
  Isa isa;
  const KeyProducer* (*keys)(DType type);  // nullptr when there is none
  const ValueProducer* (*values)(DType type);
  void (*flash)(const FlashItem& item, std::byte* scratch);
  void (*merge)(const MergeItem& item, std::byte* scratch);
  void (*plain)(const PlainItem& item, std::byte* scratch);
  void (*store_f16)(const float* x, int n, uint16_t* out);
  // The bits of formats::rotate and unrotate; `out` may be `x`.
  void (*rotate)(formats::Role side, const float* x, float* out, int64_t n);
  void (*unrotate)(formats::Role side, const float* r, float* out, int64_t n);
  // The bytes of encode_page_scalar (page_codec.h).
  void (*encode_page)(DType type, KvSide side, int head_dim, const std::byte* exact, std::byte* region,
                      const formats::TcqTable* tcq);
};

// Into the basis of a type, or back from it; nullptr when that is the model's own.
Rotation to_basis_of(DType type, const AttentionKernels& kernels);
Rotation from_basis_of(DType type, const AttentionKernels& kernels);

// The fastest kernels of this build for `isa` or below; never null.
const AttentionKernels* best_attention_kernels(Isa isa);

// Scratch of one flash item, carved by the body in this order.
struct FlashScratch {
  size_t query, scores, state, producer, total;
  FlashScratch(size_t query_bytes, size_t exact_query_bytes, int head_dim) {
    query = query_bytes + exact_query_bytes;
    scores = sizeof(float) * kBlockRows * kChunk;
    state = sizeof(float) * kBlockRows * (size_t(head_dim) + 16);
    producer = kProducerScratch;
    total = 2 * query + scores + 3 * state + producer + 8192;
  }
};

// Positions [begin, end) that a row sees.
struct Visible {
  int begin, end;
};
inline Visible visible(const AttentionArgs& args, int pos) {
  const int begin = args.window > 0 && pos >= args.window ? pos - args.window + 1 : 0;
  return {begin > args.first_pos ? begin : args.first_pos, pos + 1};
}

}  // namespace kvasir::cpu
