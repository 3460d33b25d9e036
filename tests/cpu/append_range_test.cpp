// What is written is what is stored: a row times 2^k is stored as 2^k times the row, or refused by name;
// nothing is clamped on the way, for any type that a cache can have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "backends/cpu/kernels/attention/attention.h"
#include "backends/cpu/kernels/attention/kv_page.h"
#include "base/aligned.h"
#include "formats/format.h"
#include "formats/tcq_table.h"
#include "graph/kv_layout.h"

namespace kvasir::cpu {
namespace {

constexpr int kDim = 128, kTokens = graph::kPageTokens;
using Rows = std::vector<float>;  // [64][128]

// One page of one head, written and encoded.
struct Written {
  int refused = -1;  // row
  Rows values;       // decoded, in the type's basis
};

Written write(DType type, KvSide side, const Rows& rows, const formats::TcqTable* tcq = nullptr) {
  const formats::Format& format = formats::require(type);
  const DType k = side == KvSide::kKey ? type : DType::f32, v = side == KvSide::kKey ? DType::f32 : type;
  graph::KvSpec spec{0, kDim, 1, 0, k, v};
  AlignedBuffer page(graph::kv_page_bytes(spec)),
      exact(std::max<size_t>(graph::kv_exact_page_bytes(spec), 64));
  const int32_t zero = 0;
  graph::SequenceView view;
  view.page_table[0] = view.exact_table[0] = {&zero, 1};
  std::vector<graph::Row> steps(kTokens);
  for (int t = 0; t < kTokens; ++t) steps[size_t(t)] = {1, t, 0, 0};
  const Rows ones(rows.size(), 1.0f);
  AppendArgs args;
  args.k_type = k;
  args.v_type = v;
  args.k = side == KvSide::kKey ? rows.data() : ones.data();
  args.v = side == KvSide::kKey ? ones.data() : rows.data();
  args.k_stride = args.v_stride = kDim;
  args.rows = steps.data();
  args.sequences = {&view, 1};
  args.pages = page.data();
  args.page_bytes = graph::kv_page_bytes(spec);
  args.n_kv = 1;
  args.head_dim = kDim;
  args.tcq = tcq;
  args.exact = {exact.data(), nullptr, 1, graph::kv_exact_page_bytes(spec)};
  Written out;
  out.refused = append_rows(best_isa(), args, 0, kTokens);
  if (out.refused >= 0) return out;
  const int which = side == KvSide::kKey ? 0 : 1;
  commit_page(best_isa(), args, 0, 0, 0, which);
  const KvPage layout(k, v, kDim);
  const std::byte* region = page.data() + (which == 0 ? layout.key_offset(0) : layout.value_offset(0));
  std::vector<std::byte> wire(format.row_bytes(kDim));
  out.values.resize(rows.size());
  for (int t = 0; t < kTokens; ++t) {
    unpack_row(type, side, kDim, region, t, wire.data());
    format.decode_row(tcq, wire.data(), out.values.data() + size_t(t) * kDim, kDim);
  }
  return out;
}

// Gaussian rows, rows of one spike, flat rows of random signs: largest magnitude about 4.
Rows make(int kind) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  Rows rows(size_t(kTokens) * kDim);
  for (size_t i = 0; i < rows.size(); ++i) {
    const float x = normal(random);
    if (kind == 0) rows[i] = std::clamp(x, -3.9f, 3.9f);
    if (kind == 1) rows[i] = i % kDim == (i / kDim * 5) % kDim ? 3.9f : x < 0 ? -0.0625f : 0.0625f;
    if (kind == 2) rows[i] = x < 0 ? -3.9f : 3.9f;
  }
  return rows;
}

std::set<DType> cache_types() {
  std::set<DType> types;
  for (const AttentionInfo& info : attention_variants()) types.insert({info.k, info.v});
  return types;
}

TEST(AppendRange, LargeRowsAreStoredWholeOrRefused) {
  for (DType type : cache_types())
    for (const KvSide side : {KvSide::kKey, KvSide::kValue})
      for (const int kind : {0, 1, 2}) {
        const formats::Format& format = formats::require(type);
        if (!format.has_role(side == KvSide::kKey ? formats::kKeys : formats::kValues) || !format.takes(kDim))
          continue;
        const Rows rows = make(kind);
        const Written plain = write(type, side, rows);
        ASSERT_EQ(plain.refused, -1) << format.name;
        int last_taken = 0;
        for (const int k : {4, 8, 10, 11, 12, 13, 14, 15, 20, 60}) {
          const float by = std::exp2(float(k));
          Rows large = rows;
          for (float& x : large) x *= by;
          const Written got = write(type, side, large);
          if (got.refused >= 0) continue;
          last_taken = k;
          size_t wrong = 0;
          for (size_t i = 0; i < rows.size(); ++i) wrong += got.values[i] != plain.values[i] * by;
          EXPECT_EQ(wrong, 0u) << format.name << " side " << int(side) << " kind " << kind << " times 2^"
                               << k;
        }
        EXPECT_GE(last_taken, 8) << format.name << " refuses what it can hold";
      }
}

// A given table of small levels makes large scales: rows that Kvasir's own would hold are refused, not
// clamped.
TEST(AppendRange, AGivenTableOfSmallLevels) {
  Rows levels(512);
  for (size_t s = 0; s < levels.size(); ++s) levels[s] = formats::own_tcq_table().level[s] * 0x1p-7f;
  const auto table = formats::make_tcq_table(levels, "small");
  const Rows rows = make(0);
  const Written plain = write(DType::tbq3_tcq, KvSide::kKey, rows, table.get());
  ASSERT_EQ(plain.refused, -1);
  for (const int k : {2, 4, 8, 10}) {
    const float by = std::exp2(float(k));
    Rows large = rows;
    for (float& x : large) x *= by;
    const Written got = write(DType::tbq3_tcq, KvSide::kKey, large, table.get());
    // The norm of a row is about 11 times `by`, its scale about a hundred times that.
    EXPECT_EQ(got.refused >= 0, k >= 8) << k;
    for (size_t i = 0; got.refused < 0 && i < rows.size(); ++i)
      ASSERT_EQ(got.values[i], plain.values[i] * by) << k;
  }
}

// One large value beside tiny ones, whose blocks have scales at the end of f16.
TEST(AppendRange, TinyBesideLargeIsStored) {
  for (DType type : cache_types()) {
    const formats::Format& format = formats::require(type);
    if (!format.has_role(formats::kKeys) || !format.takes(kDim)) continue;
    Rows rows = make(0);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = i % kDim == 3 ? 4000.0f : rows[i] * 1e-4f;
    EXPECT_EQ(write(type, KvSide::kKey, rows).refused, -1) << format.name;
  }
}

TEST(AppendRange, WhatIsNotFiniteIsRefusedInItsRow) {
  for (DType type : cache_types())
    for (const KvSide side : {KvSide::kKey, KvSide::kValue})
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        const formats::Format& format = formats::require(type);
        if (!format.has_role(side == KvSide::kKey ? formats::kKeys : formats::kValues) || !format.takes(kDim))
          continue;
        Rows rows = make(0);
        rows[size_t(33) * kDim + 5] = bad;
        EXPECT_EQ(write(type, side, rows).refused, 33) << format.name << ' ' << bad;
      }
}

}  // namespace
}  // namespace kvasir::cpu
