// Context shift at the attention op: keys keep the turn of the position they were written for, the query is turned to match, and
// the result equals a query over the unshifted cache that no longer sees the dropped pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backends/cpu/kernels/attention/attention.h"
#include "base/aligned.h"
#include "graph/kv_layout.h"

namespace kvasir::cpu {
namespace {

constexpr int kHeadDim = 64, kTokens = 600;

struct Cache {
  graph::KvSpec spec{0, kHeadDim, 1, 0, DType::f32, DType::f32};
  std::vector<int32_t> table;
  AlignedBuffer pages;

  Cache() {
    const int n = (kTokens + graph::kPageTokens - 1) / graph::kPageTokens;
    pages = AlignedBuffer(graph::kv_page_bytes(spec) * size_t(n));
    for (int i = 0; i < n; ++i) table.push_back(i);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> k(size_t(kTokens) * kHeadDim), v(k.size());
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    std::vector<graph::Row> rows(kTokens);
    for (int i = 0; i < kTokens; ++i) rows[size_t(i)].pos = i;
    graph::SequenceView view;
    view.page_table[0] = table;
    AppendArgs append{DType::f32, DType::f32, k.data(), v.data(), kHeadDim, kHeadDim, rows.data(), {&view, 1}, 0,
                      pages.data(), graph::kv_page_bytes(spec), 1, kHeadDim, {}};
    EXPECT_EQ(append_rows(Isa::kGeneric, append, 0, kTokens), -1);
  }
};

std::vector<float> attend(const Cache& cache, const std::vector<int32_t>& table, int pos, int first_pos, int keep_pages,
                          const float* q, const float* q_shifted, bool flash, int window = 0) {
  std::vector<float> out(kHeadDim);
  const graph::Row row{0, pos, 0, 1};
  AttentionArgs args;
  args.variant = find_attention(DType::f32, DType::f32, kHeadDim, best_isa(), flash, nullptr);
  args.q = q;
  args.q_shifted = q_shifted;
  args.q_stride = args.out_stride = kHeadDim;
  args.out = out.data();
  args.rows = &row;
  args.n_rows = 1;
  args.page_table = table;
  args.keep_pages = keep_pages;
  args.first_pos = first_pos;
  args.pages = cache.pages.data();
  args.page_bytes = graph::kv_page_bytes(cache.spec);
  args.n_head = args.n_kv = 1;
  args.head_dim = kHeadDim;
  args.window = window;
  args.scale = 0.125f;
  const AttentionPlan plan = plan_attention(args);
  AlignedBuffer shared(plan.shared_bytes + 64), scratch(plan.thread_bytes + 64);
  for (int phase = 0; phase < 2; ++phase)
    for (int64_t item = 0; item < plan.n_items[phase]; ++item)
      run_attention(args, plan, phase, item, shared.data(), scratch.data());
  return out;
}

TEST(ContextShift, EqualsAQueryThatNoLongerSeesTheDroppedPages) {
  const Cache cache;
  std::vector<float> q(kHeadDim), wrong(kHeadDim, 1e3f);
  for (int i = 0; i < kHeadDim; ++i) q[size_t(i)] = std::sin(float(i));
  for (bool flash : {true, false}) {
    const auto expected = attend(cache, cache.table, kTokens - 1, 128, 0, q.data(), nullptr, flash);
    std::vector<int32_t> shifted(cache.table.begin() + 2, cache.table.end());
    // Every page is past the (empty) prefix: only the query turned to pos + shift may be used.
    const auto ours = attend(cache, shifted, kTokens - 1 - 128, 0, 0, wrong.data(), q.data(), flash);
    for (int i = 0; i < kHeadDim; ++i) EXPECT_NEAR(ours[size_t(i)], expected[size_t(i)], 1e-5) << flash << " " << i;
  }
}

TEST(ContextShift, KeptPrefixUsesTheUnshiftedQuery) {
  const Cache cache;
  std::vector<float> q(kHeadDim, 0.5f), wrong(kHeadDim, 1e3f);
  const auto expected = attend(cache, cache.table, 127, 0, 0, q.data(), nullptr, true);
  const auto ours = attend(cache, cache.table, 127, 0, 2, q.data(), wrong.data(), true);
  EXPECT_EQ(ours, expected);
}

TEST(ContextShift, EvictedPrefixInsideAWindowIsInvisible) {
  const Cache cache;
  std::vector<float> q(kHeadDim, 0.25f);
  std::vector<int32_t> table = cache.table;
  table[0] = -1;  // evicted before the shift, inside the window after it
  for (bool flash : {true, false}) {
    const auto expected = attend(cache, cache.table, 300, 64, 0, q.data(), nullptr, flash, 512);
    EXPECT_EQ(attend(cache, table, 300, 64, 0, q.data(), nullptr, flash, 512), expected);
    for (float x : expected) EXPECT_TRUE(std::isfinite(x));
  }
}

}  // namespace
}  // namespace kvasir::cpu
