// A paged cache with shuffled physical pages and NaN-poisoned free slots, every page of it exact too where
// the types encode whole pages, and attention in double precision over what a row reads of it. Shares no code
// with the kernels but the scalar codec.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/kernels/attention/attention.h"
#include "base/aligned.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "formats/basis.h"
#include "formats/format.h"
#include "graph/kv_layout.h"

namespace kvasir::cpu::test {

struct Shape {
  DType k = DType::f16, v = DType::f16;
  int n_head = 8, n_kv = 1, head_dim = 64, window = 0;
  float scale = 0.125f, softcap = 0;
};

inline std::vector<float> gaussian(size_t n, uint32_t seed, float sigma = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> out(n);
  for (float& x : out) x = normal(engine);
  return out;
}

// One head's values as an exact page holds them, then through the type's codec when `coded`, in the model's
// basis.
inline void as_stored(DType type, formats::Role side, int head_dim, bool coded, float* x) {
  const auto& format = formats::require(type);
  std::vector<std::byte> wire(format.row_bytes(head_dim));
  formats::to_basis(format.basis, side, x, x, head_dim);
  if (format.open_page())
    for (int d = 0; d < head_dim; ++d) x[d] = f16_to_f32(f32_to_f16(x[d]));
  if (coded) {
    format.encode(x, wire.data(), head_dim);
    format.decode(wire.data(), x, head_dim);
  }
  formats::from_basis(format.basis, side, x, x, head_dim);
}

inline std::vector<float> stored(DType type, formats::Role side, int head_dim, bool coded,
                                 std::vector<float> x) {
  for (size_t at = 0; at < x.size(); at += size_t(head_dim))
    as_stored(type, side, head_dim, coded, x.data() + at);
  return x;
}

// Cache of one sequence of n tokens with positions 0 .. n-1.
struct Cache {
  Shape shape;
  int n = 0;
  std::vector<float> k, v;                // [n][n_kv * head_dim], as given to append_rows
  std::vector<float> stored_k, stored_v;  // encoded
  std::vector<float> exact_k, exact_v;
  std::vector<int32_t> exact_table;
  int exact_first = 0, exact_last = 0;
  std::vector<int32_t> table;
  size_t page_bytes = 0;
  AlignedBuffer pages, exact_pages;

  Cache(const Shape& s, int tokens, uint32_t seed = 1, Isa isa = Isa::kGeneric) : shape(s), n(tokens) {
    const size_t width = size_t(s.n_kv) * s.head_dim;
    k = gaussian(size_t(n) * width, seed);
    v = gaussian(size_t(n) * width, seed + 1);
    stored_k = stored(s.k, formats::kKeys, s.head_dim, true, k);
    stored_v = stored(s.v, formats::kValues, s.head_dim, true, v);
    exact_k = stored(s.k, formats::kKeys, s.head_dim, !formats::require(s.k).open_page(), k);
    exact_v = stored(s.v, formats::kValues, s.head_dim, !formats::require(s.v).open_page(), v);
    page_bytes = graph::kv_page_bytes({0, s.head_dim, s.n_kv, s.window, s.k, s.v});
    const int n_pages = (n + 63) / 64;
    pages = AlignedBuffer(page_bytes * size_t(n_pages + 2));
    std::memset(pages.data(), 0xff,
                pages.size());  // NaN in every float type; a NaN scale in every block type
    for (int p = 0; p < n_pages; ++p) table.push_back((p * 7 + 3) % (n_pages + 2));
    for (int p = 0; p < n_pages; ++p)  // 7 may divide the count: then any order without repeats
      if ((n_pages + 2) % 7 == 0) table[size_t(p)] = n_pages + 1 - p;
    exact_bytes = graph::kv_exact_page_bytes({0, s.head_dim, s.n_kv, s.window, s.k, s.v});
    for (int p = 0; p < n_pages; ++p) exact_table.push_back(exact_bytes ? n_pages - 1 - p : -1);
    exact_pages = AlignedBuffer(exact_bytes * size_t(n_pages) + 64);
    std::memset(exact_pages.data(), 0xff, exact_pages.size());
    EXPECT_EQ(append(0, n, isa), -1);
    for (int p = 0; p < n / 64 && exact_bytes; ++p)
      for (int h = 0; h < s.n_kv; ++h)
        for (int side = 0; side < 2; ++side) commit(p, h, side, isa);
  }

  size_t exact_bytes = 0;
  // The first half of the exact pages as if they lay in the cache, the others in a step's memory.
  ExactPages exact() const {
    std::byte* data = const_cast<std::byte*>(exact_pages.data());
    const int n_cached = int(exact_table.size() / 2);
    return {data, data + exact_bytes * size_t(n_cached), n_cached, exact_bytes};
  }

  template <typename Call>
  auto with_args(const Call& call) {
    std::vector<graph::Row> rows;
    for (int i = 0; i < n; ++i) rows.push_back({0, i, 0, 0});
    graph::SequenceView view;
    view.page_table[0] = table;
    view.exact_table[0] = exact_table;
    const int64_t width = int64_t(shape.n_kv) * shape.head_dim;
    return call(AppendArgs{shape.k,
                           shape.v,
                           k.data(),
                           v.data(),
                           width,
                           width,
                           rows.data(),
                           {&view, 1},
                           0,
                           pages.data(),
                           page_bytes,
                           shape.n_kv,
                           shape.head_dim,
                           exact()});
  }

  int append(int begin, int end, Isa isa) {
    return with_args([&](const AppendArgs& args) { return append_rows(isa, args, begin, end); });
  }
  void commit(int page, int kv_head, int side, Isa isa) {
    with_args([&](const AppendArgs& args) { commit_page(isa, args, 0, page, kv_head, side); });
  }

  bool reads_exact(int query, int key) const {
    return graph::reads_exact(exact_first, exact_last, query, key);
  }

  // Forgets every page that lies wholly before `pos` (a window's eviction), poisoning it.
  void evict_before(int pos) {
    for (int p = 0; (p + 1) * 64 <= pos; ++p) {
      std::memset(pages.data() + size_t(table[size_t(p)]) * page_bytes, 0xff, page_bytes);
      table[size_t(p)] = -1;
    }
  }
};

struct Queries {
  std::vector<float> q;
  std::vector<float> shifted;  // or empty
  int keep_pages = 0;
  int first_pos = 0, n_rows = 0;
  std::vector<graph::Row> rows;

  Queries(const Shape& s, int first, int count, uint32_t seed = 9)
      : q(gaussian(size_t(count) * s.n_head * s.head_dim, seed)), first_pos(first), n_rows(count) {
    for (int i = 0; i < count; ++i) rows.push_back({0, first + i, 0, 0});
  }
};

inline AttentionArgs make_args(const AttentionVariant* variant, const Cache& cache, const Queries& queries,
                               int begin, int end, float* out) {
  const Shape& s = cache.shape;
  const int64_t width = int64_t(s.n_head) * s.head_dim;
  AttentionArgs args;
  args.variant = variant;
  args.q = queries.q.data() + begin * width;
  args.q_shifted = queries.shifted.empty() ? nullptr : queries.shifted.data() + begin * width;
  args.keep_pages = queries.keep_pages;
  args.q_stride = args.out_stride = width;
  args.out = out + begin * width;
  args.rows = queries.rows.data() + begin;
  args.n_rows = end - begin;
  args.page_table = cache.table;
  args.exact_table = cache.exact_table;
  args.exact = cache.exact();
  args.exact_first = cache.exact_first;
  args.exact_last = cache.exact_last;
  args.pages = cache.pages.data();
  args.page_bytes = cache.page_bytes;
  args.n_head = s.n_head;
  args.n_kv = s.n_kv;
  args.head_dim = s.head_dim;
  args.window = s.window;
  args.scale = s.scale;
  args.softcap = s.softcap;
  return args;
}

// Scratch of the bound's size that starts as NaN; nothing may be written past it.
struct Scratch {
  AttentionPlan bound;
  AlignedBuffer shared;
  std::vector<AlignedBuffer> threads;

  Scratch(const AttentionPlan& b, int n_threads) : bound(b), shared(b.shared_bytes + 64) {
    std::memset(shared.data(), 0xff, shared.size());
    for (int t = 0; t < n_threads; ++t) {
      threads.emplace_back(b.thread_bytes + 64);
      std::memset(threads.back().data(), 0xff, threads.back().size());
    }
  }
  ~Scratch() {
    for (const auto& s : threads)
      for (size_t i = bound.thread_bytes; i < s.size(); ++i) EXPECT_EQ(s.data()[i], std::byte(0xff));
    for (size_t i = bound.shared_bytes; i < shared.size(); ++i) EXPECT_EQ(shared.data()[i], std::byte(0xff));
  }
};

// Items in an order and on scratches as n threads could have taken them, or with a pool for real.
inline void run_call(const AttentionArgs& args, ThreadPool* pool, Scratch& scratch) {
  const AttentionPlan plan = plan_attention(args);
  ASSERT_LE(plan.shared_bytes, scratch.bound.shared_bytes);
  ASSERT_LE(plan.thread_bytes, scratch.bound.thread_bytes);
  const auto run = [&](int phase, int64_t item, int thread) {
    run_attention(args, plan, phase, item, scratch.shared.data(), scratch.threads[size_t(thread)].data());
  };
  if (!pool) {
    std::mt19937 random(7);
    for (int phase = 0; phase < 2; ++phase) {
      std::vector<int64_t> items(size_t(plan.n_items[phase]));
      std::iota(items.begin(), items.end(), 0);
      if (scratch.threads.size() > 1) std::shuffle(items.begin(), items.end(), random);
      for (int64_t item : items) run(phase, item, int(random() % scratch.threads.size()));
    }
    return;
  }
  TaskCounter counters[2];
  pool->run([&](int thread) {
    for (int phase = 0; phase < 2; ++phase) {
      for (int64_t i; (i = counters[phase].take()) < plan.n_items[phase];) run(phase, i, thread);
      pool->barrier();
    }
  });
}

// All rows in calls of at most `batch` rows.
inline std::vector<float> attend(const AttentionVariant* variant, const Cache& cache, const Queries& queries,
                                 int batch, int n_threads, ThreadPool* pool = nullptr) {
  std::vector<float> out(queries.q.size(), std::numeric_limits<float>::quiet_NaN());
  Scratch scratch(bound_attention(make_args(variant, cache, queries, 0, 1, out.data()), batch, cache.n),
                  n_threads);
  for (int begin = 0; begin < queries.n_rows; begin += batch)
    run_call(make_args(variant, cache, queries, begin, std::min(begin + batch, queries.n_rows), out.data()),
             pool, scratch);
  return out;
}

// Double precision over the stored values; `spread` gets sum_j p_j |v_j| for error bounds.
inline std::vector<double> reference(const Cache& cache, const Queries& queries,
                                     std::vector<double>* spread = nullptr) {
  const Shape& s = cache.shape;
  const int group = s.n_head / s.n_kv;
  std::vector<double> out(queries.q.size());
  if (spread) spread->assign(queries.q.size(), 0);
  for (int r = 0; r < queries.n_rows; ++r)
    for (int h = 0; h < s.n_head; ++h) {
      const int pos = queries.rows[size_t(r)].pos;
      const size_t at = (size_t(r) * s.n_head + h) * s.head_dim;
      std::vector<double> weight;
      std::vector<int> seen;
      double top = -1e300, sum = 0;
      for (int j = 0; j < cache.n && j <= pos; ++j) {
        if (s.window > 0 && pos - j >= s.window) continue;
        const bool shifted = !queries.shifted.empty() && j / 64 >= queries.keep_pages;
        const float* q = (shifted ? queries.shifted : queries.q).data() + at;
        const bool exact = cache.reads_exact(pos / 64, j / 64);
        const float* k =
            (exact ? cache.exact_k : cache.stored_k).data() + (size_t(j) * s.n_kv + h / group) * s.head_dim;
        double dot = 0;
        for (int d = 0; d < s.head_dim; ++d) dot += double(q[d]) * k[d];
        dot *= s.scale;
        if (s.softcap > 0) dot = s.softcap * std::tanh(dot / s.softcap);
        weight.push_back(dot);
        seen.push_back(j);
        top = std::max(top, dot);
      }
      for (double& w : weight) sum += w = std::exp(w - top);
      for (size_t i = 0; i < seen.size(); ++i) {
        const bool exact = cache.reads_exact(pos / 64, seen[i] / 64);
        const float* v = (exact ? cache.exact_v : cache.stored_v).data() +
                         (size_t(seen[i]) * s.n_kv + h / group) * s.head_dim;
        for (int d = 0; d < s.head_dim; ++d) {
          out[at + d] += weight[i] / sum * v[d];
          if (spread) (*spread)[at + d] += weight[i] / sum * std::fabs(v[d]);
        }
      }
    }
  return out;
}

// Largest |got - want| in units of the bound's spread; infinite when anything is not finite.
inline double worst(const std::vector<float>& got, const std::vector<double>& want,
                    const std::vector<double>& spread) {
  double most = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::fabs(got[i] - want[i]) / spread[i]);
  }
  return most;
}

}  // namespace kvasir::cpu::test
