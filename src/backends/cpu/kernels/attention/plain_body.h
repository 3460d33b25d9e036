// The plain path (flash attention off): raw scores of every visible key, one softmax over all of them, one
// weighted sum. It shares the page reader with the flash path and nothing else. Rows of head-wide types stay
// in their basis: the query goes there and the result comes back. Included by each ISA file, into an unnamed
// namespace.
#pragma once
#include <cmath>

#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "backends/cpu/kernels/attention/page_reader.h"
#include "base/mutation.h"
#include "formats/basis.h"
#include "formats/format.h"
#include "graph/kv_layout.h"

namespace kvasir::cpu {
namespace {

// Scratch: tile [64][head_dim], then scores [rows][group heads][the most keys that one of the rows sees].
struct PlainScratch {
  float* tile;
  float* scores;
  PlainScratch(std::byte* scratch, int head_dim)
      : tile(reinterpret_cast<float*>(scratch)), scores(tile + graph::kPageTokens * size_t(head_dim)) {}
};

inline float plain_dot(const float* a, const float* b, int n) {
  float lanes[16] = {};
  for (int i = 0; i < n; i += 16)
    for (int j = 0; j < 16; ++j) lanes[j] += a[i + j] * b[i + j];
  for (int width = 8; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

// Rows whose own positions lie in one page: they read the same pages exactly.
struct Plain {
  const PlainItem& item;
  const AttentionArgs& args;
  int row, n_rows, n_heads;
  Visible keys;  // of all rows together
  PlainScratch scratch;

  Plain(const PlainItem& it, int first, int n, std::byte* bytes)
      : item(it),
        args(*it.args),
        row(first),
        n_rows(n),
        n_heads(args.n_head / args.n_kv),
        keys{visible(args, args.rows[first].pos).begin, args.rows[first + n - 1].pos + 1},
        scratch(bytes, args.head_dim) {}

  // Keys of page p that row r sees, as tokens of the page; none when first >= end.
  struct Tokens {
    int first, end;
  };
  Tokens tokens(const Visible& v, int p) const {
    return {v.begin > p * 64 ? v.begin - p * 64 : 0, v.end < p * 64 + 64 ? v.end - p * 64 : 64};
  }
  Tokens tokens(int r, int p) const { return tokens(seen(r), p); }

  // Reads the keys or values of page p that any row sees into the tile; false when the page is not stored.
  bool read(int p, KvSide side) const {
    if (size_t(p) >= args.page_table.size() || args.page_table[p] < 0) return false;
    const auto [first, end] = tokens(keys, p);
    if (const std::byte* exact = exact_region(p, side)) {
      for (int t = first; t < end; ++t)
        load_exact_row(side, args.head_dim, exact, t, scratch.tile + size_t(t) * args.head_dim);
      return true;
    }
    const std::byte* page = args.pages + size_t(args.page_table[p]) * args.page_bytes;
    read_page_rows(item.k_type, item.v_type, side, args.head_dim, item.kv_head, page, first, end, args.tcq,
                   scratch.tile);
    return true;
  }

  // Where this head's side of page p is as written, or nullptr when the rows read it encoded.
  const std::byte* exact_region(int p, KvSide side) const {
    const bool open_keys = formats::require(item.k_type).open_page();
    if (!formats::require(side == KvSide::kKey ? item.k_type : item.v_type).open_page()) return nullptr;
    const int query = args.rows[row].pos / graph::kPageTokens;
    if (!graph::reads_exact(args.exact_first, args.exact_last, query, p) ||
        size_t(p) >= args.exact_table.size() || args.exact_table[p] < 0)
      return nullptr;
    const size_t keys_bytes = sizeof(uint16_t) * size_t(graph::kPageTokens) * size_t(args.head_dim);
    return args.exact.page(args.exact_table[p]) +
           args.exact.page_bytes / size_t(args.n_kv) * size_t(item.kv_head) +
           (side == KvSide::kValue && open_keys ? keys_bytes : 0);
  }

  Visible seen(int r) const { return visible(args, args.rows[row + r].pos); }

  // Of head g of row r: score of position j at [j - seen(r).begin].
  float* row_scores(int r, int g) const {
    const Visible most = seen(n_rows - 1);
    return scratch.scores + (int64_t(r) * n_heads + g) * (most.end - most.begin);
  }

  // attention_scores: cap(scale * q . k) of every visible key.
  void score() const {
    for (int p = keys.begin / 64; p * 64 < keys.end; ++p) {
      if (!read(p, KvSide::kKey)) continue;
      const float* from = args.q_shifted && p >= args.keep_pages ? args.q_shifted : args.q;
      for (int r = 0; r < n_rows; ++r)
        for (int g = 0; g < n_heads; ++g)
          score_page(
              from + int64_t(row + r) * args.q_stride + (int64_t(item.kv_head) * n_heads + g) * args.head_dim,
              p, tokens(r, p), row_scores(r, g), seen(r).begin);
    }
  }

  void score_page(const float* q, int p, Tokens of, float* scores, int begin) const {
    float rotated[kMaxHeadDim];
    if (!args.q_rotated) {
      formats::to_basis(formats::require(item.k_type).basis, formats::kKeys, q, rotated, args.head_dim);
      q = rotated;
    }
    for (int t = of.first + mutated(Mutation::kPlainWindow); t < of.end; ++t) {
      float s = args.scale * plain_dot(q, scratch.tile + size_t(t) * args.head_dim, args.head_dim);
      if (mutated(Mutation::kPlainCap) && args.softcap > 0) s *= 1.02f;
      scores[p * 64 + t - begin] = args.softcap > 0 ? args.softcap * std::tanh(s / args.softcap) : s;
    }
  }

  void softmax() const {
    for (int r = 0; r < n_rows; ++r)
      for (int g = 0; g < n_heads; ++g) {
        const auto [begin, end] = seen(r);
        const int n = end - begin - (mutated(Mutation::kPlainLastKey) && end - begin > 1);
        float* s = row_scores(r, g);
        float top = s[0], sum = 0;
        for (int j = 1; j < n; ++j) top = s[j] > top ? s[j] : top;
        for (int j = 0; j < n; ++j) s[j] = std::exp(s[j] - top);
        for (int j = 0; j < n; ++j) sum += s[j];
        for (int j = 0; j < n; ++j) s[j] /= sum;
      }
  }

  float* out(int r, int g) const {
    return args.out + int64_t(row + r) * args.out_stride +
           (int64_t(item.kv_head) * n_heads + g) * args.head_dim;
  }

  // softmax_mix: out = sum_j p_j v_j.
  void mix() const {
    for (int r = 0; r < n_rows; ++r)
      for (int i = 0; i < n_heads * args.head_dim; ++i) out(r, 0)[i] = 0;
    for (int p = keys.begin / 64; p * 64 < keys.end; ++p) {
      if (!read(p, KvSide::kValue)) continue;
      for (int r = 0; r < n_rows; ++r) {
        const auto [first, end] = tokens(r, p);
        for (int g = 0; g < n_heads; ++g)
          for (int t = first; t < end; ++t) {
            const float w = row_scores(r, g)[p * 64 + t - seen(r).begin];
            const float* v = scratch.tile + size_t(t) * args.head_dim;
            float* o = out(r, g);
            for (int d = 0; d < args.head_dim; ++d) o[d] += w * v[d];
          }
      }
    }
    const formats::Basis basis = formats::require(item.v_type).basis;
    for (int r = 0; r < n_rows; ++r)
      for (int g = 0; g < n_heads; ++g)
        formats::from_basis(basis, formats::kValues, out(r, g), out(r, g), args.head_dim);
  }
};

void plain_item(const PlainItem& item, std::byte* scratch) {
  const graph::Row* rows = item.args->rows;
  for (int row = item.row, end = row + item.n_rows; row < end;) {
    int n = 1;
    while (row + n < end && rows[row + n].pos / graph::kPageTokens == rows[row].pos / graph::kPageTokens) ++n;
    const Plain plain(item, row, n, scratch);
    plain.score();
    plain.softmax();
    plain.mix();
    row += n;
  }
}

}  // namespace
}  // namespace kvasir::cpu
