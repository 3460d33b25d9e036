// The plain path (flash attention off): raw scores of every visible key, one softmax over all of them, one
// weighted sum. It shares the page reader with the flash path and nothing else. Rows of head-wide types stay
// in their basis: the query goes there and the result comes back. Included by each ISA file, into an unnamed
// namespace.
#pragma once
#include <cmath>

#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "backends/cpu/kernels/attention/page_reader.h"
#include "formats/basis.h"
#include "formats/format.h"
#include "graph/kv_layout.h"

namespace kvasir::cpu {
namespace {

// Scratch: tile [64][head_dim], then scores [group heads][visible keys].
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

struct Plain {
  const PlainItem& item;
  const AttentionArgs& args;
  int n_heads;
  Visible keys;
  PlainScratch scratch;

  Plain(const PlainItem& it, std::byte* bytes)
      : item(it),
        args(*it.args),
        n_heads(args.n_head / args.n_kv),
        keys(visible(args, args.rows[it.row].pos)),
        scratch(bytes, args.head_dim) {}

  // Reads the visible keys or values of page p into the tile; false when the page is not stored.
  bool read(int p, KvSide side, int* first, int* end) const {
    if (size_t(p) >= args.page_table.size() || args.page_table[p] < 0) return false;
    *first = keys.begin > p * 64 ? keys.begin - p * 64 : 0;
    *end = keys.end < p * 64 + 64 ? keys.end - p * 64 : 64;
    if (const std::byte* exact = exact_region(p, side)) {
      for (int t = *first; t < *end; ++t)
        load_exact_row(side, args.head_dim, exact, t, scratch.tile + size_t(t) * args.head_dim);
      return true;
    }
    const std::byte* page = args.pages + size_t(args.page_table[p]) * args.page_bytes;
    read_page_rows(item.k_type, item.v_type, side, args.head_dim, item.kv_head, page, *first, *end,
                   scratch.tile);
    return true;
  }

  // Where this head's side of page p is as written, or nullptr when the row reads it encoded.
  const std::byte* exact_region(int p, KvSide side) const {
    const bool open_keys = formats::require(item.k_type).open_page();
    if (!formats::require(side == KvSide::kKey ? item.k_type : item.v_type).open_page()) return nullptr;
    const int query = args.rows[item.row].pos / graph::kPageTokens;
    if (!graph::reads_exact(args.exact_first, args.exact_last, query, p) ||
        size_t(p) >= args.exact_table.size() || args.exact_table[p] < 0)
      return nullptr;
    const size_t keys_bytes = sizeof(uint16_t) * size_t(graph::kPageTokens) * size_t(args.head_dim);
    return args.exact.page(args.exact_table[p]) +
           args.exact.page_bytes / size_t(args.n_kv) * size_t(item.kv_head) +
           (side == KvSide::kValue && open_keys ? keys_bytes : 0);
  }

  float* row_scores(int g) const { return scratch.scores + size_t(g) * size_t(keys.end - keys.begin); }

  // attention_scores: cap(scale * q . k) of every visible key.
  void score() const {
    for (int p = keys.begin / 64; p * 64 < keys.end; ++p) {
      int first = 0, end = 0;
      const bool stored = read(p, KvSide::kKey, &first, &end);
      const bool shifted = args.q_shifted && p >= args.keep_pages;
      const float* heads = (shifted ? args.q_shifted : args.q) + int64_t(item.row) * args.q_stride +
                           int64_t(item.kv_head) * n_heads * args.head_dim;
      for (int g = 0; g < n_heads && stored; ++g) {
        const float* q = heads + int64_t(g) * args.head_dim;
        float rotated[kMaxHeadDim];
        if (!args.q_rotated) {
          formats::to_basis(formats::require(item.k_type).basis, formats::kKeys, q, rotated, args.head_dim);
          q = rotated;
        }
        for (int t = first; t < end; ++t) {
          const float s = args.scale * plain_dot(q, scratch.tile + size_t(t) * args.head_dim, args.head_dim);
          row_scores(g)[p * 64 + t - keys.begin] =
              args.softcap > 0 ? args.softcap * std::tanh(s / args.softcap) : s;
        }
      }
    }
  }

  void softmax() const {
    const int n = keys.end - keys.begin;
    for (int g = 0; g < n_heads; ++g) {
      float* s = row_scores(g);
      float top = s[0], sum = 0;
      for (int j = 1; j < n; ++j) top = s[j] > top ? s[j] : top;
      for (int j = 0; j < n; ++j) s[j] = std::exp(s[j] - top);
      for (int j = 0; j < n; ++j) sum += s[j];
      for (int j = 0; j < n; ++j) s[j] /= sum;
    }
  }

  // softmax_mix: out = sum_j p_j v_j.
  void mix() const {
    float* out =
        args.out + int64_t(item.row) * args.out_stride + int64_t(item.kv_head) * n_heads * args.head_dim;
    for (int i = 0; i < n_heads * args.head_dim; ++i) out[i] = 0;
    for (int p = keys.begin / 64; p * 64 < keys.end; ++p) {
      int first = 0, end = 0;
      if (!read(p, KvSide::kValue, &first, &end)) continue;
      for (int g = 0; g < n_heads; ++g)
        for (int t = first; t < end; ++t) {
          const float w = row_scores(g)[p * 64 + t - keys.begin];
          const float* v = scratch.tile + size_t(t) * args.head_dim;
          float* o = out + int64_t(g) * args.head_dim;
          for (int d = 0; d < args.head_dim; ++d) o[d] += w * v[d];
        }
    }
    for (int g = 0; g < n_heads; ++g) {
      float* o = out + int64_t(g) * args.head_dim;
      formats::from_basis(formats::require(item.v_type).basis, formats::kValues, o, o, args.head_dim);
    }
  }
};

void plain_item(const PlainItem& item, std::byte* scratch) {
  const Plain plain(item, scratch);
  plain.score();
  plain.softmax();
  plain.mix();
}

}  // namespace
}  // namespace kvasir::cpu
