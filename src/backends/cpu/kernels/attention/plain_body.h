// The plain path (flash attention off): raw scores of every visible key, one softmax over all of them, one
// weighted sum. It shares the page reader with the flash path and nothing else. Included by each ISA file,
// into an unnamed namespace.
#pragma once
#include <cmath>

#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/attention/page_reader.h"

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
    const std::byte* page = args.pages + size_t(args.page_table[p]) * args.page_bytes;
    read_page_rows(item.k_type, item.v_type, side, args.head_dim, item.kv_head, page, *first, *end,
                   scratch.tile);
    return true;
  }

  float* row_scores(int g) const { return scratch.scores + size_t(g) * size_t(keys.end - keys.begin); }

  // attention_scores: cap(scale * q . k) of every visible key.
  void score() const {
    for (int p = keys.begin / 64; p * 64 < keys.end; ++p) {
      int first = 0, end = 0;
      const bool stored = read(p, KvSide::kKey, &first, &end);
      const bool shifted = args.q_shifted && p >= args.keep_pages;
      const float* q = (shifted ? args.q_shifted : args.q) + int64_t(item.row) * args.q_stride +
                       int64_t(item.kv_head) * n_heads * args.head_dim;
      for (int g = 0; g < n_heads && stored; ++g)
        for (int t = first; t < end; ++t) {
          const float s = args.scale * plain_dot(q + int64_t(g) * args.head_dim,
                                                 scratch.tile + size_t(t) * args.head_dim, args.head_dim);
          row_scores(g)[p * 64 + t - keys.begin] =
              args.softcap > 0 ? args.softcap * std::tanh(s / args.softcap) : s;
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
