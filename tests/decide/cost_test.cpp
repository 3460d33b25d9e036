// Predictions on a recorded table, and the tables' way to JSON and back.
#include "decide/cost.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "decide/inputs.h"
#include "decide/quality.h"

namespace kvasir::decide {
namespace {

using test::both;

// Round figures like those of two AVX-512 cores; docs/evidence has a measured table.
MachineTable invented() {
  MachineTable t;
  t.backend = "cpu";
  t.device = "Intel Xeon, 2 cores";
  t.isa = "avx512";
  t.threads = 2;
  t.read_gb_per_s = 24;
  t.int8_gops = 1250;
  t.f32_gflops = 330;
  t.op_us = 2.3;
  t.value_ns = 0.25;
  t.weights = {{DType::q8_0, 23.5, 640},
               {DType::q4_k, 19.5, 550},
               {DType::q6_k, 20, 500},
               {DType::bf16, 21, 210},
               {DType::f16, 21, 210}};
  for (const int head_dim : {256, 512}) {
    const double s = head_dim / 512.0;
    t.attention.push_back({DType::f16, DType::f16, head_dim, 2, 105 * s, 24 * s, 7000 * s});
    t.attention.push_back({DType::f16, DType::f16, head_dim, 8, 121 * s, 92 * s, 7000 * s});
    t.attention.push_back({DType::q8_0, DType::q8_0, head_dim, 2, 62 * s, 23 * s, 10000 * s});
    t.attention.push_back({DType::q8_0, DType::q8_0, head_dim, 8, 96 * s, 88 * s, 10000 * s});
    t.attention.push_back({DType::tbq4_h, DType::tbq4_h, head_dim, 8, 63 * s, 28 * s, 9000 * s});
    t.attention.push_back({DType::qjl1_256, DType::q8_0, head_dim, 8, 148 * s, 66 * s, 80000 * s});
  }
  return t;
}

TEST(Cost, StepOfE2bIsItsBytesOverTheRate) {
  const ModelGeometry g = test::geometry("gemma4-e2b");
  const Prediction p = predict_step(invented(), g, both(DType::q8_0), 16);
  ASSERT_TRUE(p.cost) << p.missing;
  EXPECT_GT(1 / p.cost->total(), 8.0);
  EXPECT_LT(1 / p.cost->total(), 10.0);
  EXPECT_NEAR(p.cost->weights, double(g.step_bytes()) / 23.4e9, 0.02 * p.cost->weights);
}

TEST(Cost, AttentionGrowsWithGlobalLayersOnlyBeyondTheWindow) {
  const ModelGeometry g = test::geometry("gemma4-e2b");
  const auto attention = [&](int n) {
    return predict_step(invented(), g, both(DType::q8_0), n).cost->attention;
  };
  // 7 global layers of one KV head: 96 ns a token each; 28 sliding layers stay at 512 tokens.
  EXPECT_NEAR(attention(32768) - attention(16384), 16384 * 7 * 96e-9, 1e-9);
  EXPECT_NEAR(attention(512), 512 * (7 * 96e-9 + 28 * 48e-9), 1e-9);
  const auto f16 = predict_step(invented(), g, both(DType::f16), 131072),
             h4 = predict_step(invented(), g, both(DType::tbq4_h), 131072);
  EXPECT_NEAR(f16.cost->attention / h4.cost->attention, 121.0 / 63, 0.01);
}

TEST(Cost, PairsThatWereNotMeasuredAreHalvesOfThoseThatWere) {
  const MachineTable t = invented();
  EXPECT_DOUBLE_EQ(*attention_ns(t, DType::f16, DType::q8_0, 512, 8), (121 + 96) / 2.0);
  EXPECT_DOUBLE_EQ(*attention_ns(t, DType::qjl1_256, DType::q8_0, 512, 8), 148);
  // Keys of their own kind: what is left of the measured pair, beside half of the other.
  EXPECT_DOUBLE_EQ(*attention_ns(t, DType::qjl1_256, DType::f16, 512, 8), (148 - 96 / 2.0) + 121 / 2.0);
  EXPECT_DOUBLE_EQ(*attention_ns(t, DType::q8_0, DType::q8_0, 512, 5), 79);  // between
  EXPECT_DOUBLE_EQ(*attention_ns(t, DType::q8_0, DType::q8_0, 512, 16), 96 + (96 - 62) / 6.0 * 8);
  EXPECT_DOUBLE_EQ(*attention_ns(t, DType::q8_0, DType::q8_0, 512, 1), 62);  // bytes bound it below
  EXPECT_FALSE(attention_ns(t, DType::tbq3_h, DType::q8_0, 512, 8));
  EXPECT_FALSE(attention_ns(t, DType::q8_0, DType::q8_0, 128, 8));
}

TEST(Cost, WhatIsMissingIsNamed) {
  const Prediction kv = predict_step(invented(), test::geometry("gemma4-e2b"), both(DType::tbq3_h), 100);
  EXPECT_FALSE(kv.cost);
  EXPECT_EQ(kv.missing, "attention over tbq3_h/tbq3_h at head size 256");
  const Prediction weights =
      predict_step(invented(), test::geometry("gemma4-e2b", "q5_0"), both(DType::q8_0), 100);
  EXPECT_FALSE(weights.cost);
  EXPECT_EQ(weights.missing, "products with q5_0 weights");
}

TEST(Cost, PromptIsOperationsOverTheRateAndKeysSeen) {
  const ModelGeometry g = test::geometry("gemma4-e2b");
  const Prediction p = predict_prompt(invented(), g, both(DType::q8_0), 512, 0, 512);
  ASSERT_TRUE(p.cost) << p.missing;
  double weights = 0;
  for (const StepWeights& part : g.step) {
    const bool q8 = part.type == DType::q8_0;  // the rest is bf16 and a little f32
    weights += 512 * 2.0 * double(part.prompt_values) / (q8 ? 640e9 : 210e9) +
               double(part.bytes - part.prompt_bytes) / (q8 ? 23.5e9 : 21e9);
  }
  EXPECT_NEAR(p.cost->weights, weights, 0.02 * weights);
  // 14 layers for every row (2 global at 88 ns, 12 sliding at 44), the other 21 for the last one alone.
  const double seen = 512 * 513 / 2;
  EXPECT_NEAR(p.cost->attention, seen * (2 * 88e-9 + 12 * 44e-9) + 512 * (5 * 96e-9 + 16 * 48e-9), 1e-9);
  EXPECT_GT(512 / p.cost->total(), 300);
  EXPECT_LT(512 / p.cost->total(), 600);
}

TEST(Cost, PromptsGrowWithDepthByGlobalLayersOnly) {
  const ModelGeometry g = test::geometry("gemma4-e2b");
  const auto attention = [&](int depth) {
    return predict_prompt(invented(), g, both(DType::q8_0), 512, depth, 512).cost->attention;
  };
  EXPECT_NEAR(attention(32768) - attention(16384), 16384 * (512 * 2 * 88e-9 + 5 * 96e-9), 1e-7);
  // Rows within the window see all, later ones its width.
  const double within = 512 * 513 / 2, beyond = 512 * 512;
  const double global = 512 * 512 * 2 * 88e-9 + 512 * 5 * 96e-9;
  EXPECT_NEAR(attention(512) - attention(0), (beyond - within) * 12 * 44e-9 + global, 1e-7);
}

TEST(Cost, FewRowsAreBoundByReadingTheWeights) {
  const ModelGeometry g = test::geometry("gemma4-e2b");
  const double one = predict_step(invented(), g, both(DType::q8_0), 1).cost->total();
  const auto prompt = [&](int n, int n_ubatch) {
    return predict_prompt(invented(), g, both(DType::q8_0), n, 0, n_ubatch).cost->total();
  };
  EXPECT_NEAR(prompt(1, 512), one, 0.02 * one);
  EXPECT_GT(prompt(512, 1), 512 * 0.2 * one);
  EXPECT_LT(prompt(512, 512), prompt(512, 16));
  EXPECT_EQ(prompt(512, 0), prompt(512, 512));  // an older figure does not say in how many steps it was taken
}

TEST(Cost, AnOlderTablePredictsNoPromptsAndSaysWhatItLacks) {
  MachineTable t = invented();
  t.value_ns = 0;
  EXPECT_EQ(predict_prompt(t, test::geometry("gemma4-e2b"), both(DType::q8_0), 8, 0, 8).missing,
            "norms of many rows");
  t = invented();
  t.weights[0].prompt_gops = 0;
  EXPECT_EQ(predict_prompt(t, test::geometry("gemma4-e2b"), both(DType::q8_0), 8, 0, 8).missing,
            "products of many rows with q8_0 weights");
  t = invented();
  for (AttentionCost& row : t.attention) row.prompt_ns = 0;
  EXPECT_EQ(predict_prompt(t, test::geometry("gemma4-e2b"), both(DType::q8_0), 8, 0, 8).missing,
            "prompts: attention over q8_0/q8_0 at head size 256");
  std::string text = to_json(invented());
  for (const char* field : {"value_ns", "prompt_gops", "prompt_ns", "append_ns"})
    for (size_t at; (at = text.find(std::string("\"") + field + "\"")) != text.npos;)
      text.replace(at + 1, std::string(field).size(), "old");
  EXPECT_EQ(machine_from_json(text, "t.json").attention[0].prompt_ns, 0);
}

// A device whose steps are chains of launches, in round figures.
MachineTable device() {
  MachineTable t = invented();
  t.backend = "cuda";
  t.op_us = 2;
  t.weights = {{DType::q8_0, 4000, 500e3, 2, 15}, {DType::bf16, 4000, 500e3, 3, 20}};
  for (AttentionCost& row : t.attention) {
    row.ns_per_key = 0.5, row.prompt_ns = 0.1, row.append_ns = 2;
    row.start_us = 5, row.window_start_us = 9, row.far_start_us = 12, row.prompt_start_us = 40;
  }
  return t;
}

TEST(Cost, StartsOfLaunchesAreThoseOfWhatTheyStart) {
  const ModelGeometry g = test::geometry("gemma4-e2b");  // 35 layers, 28 of window 512
  // Of a layer: queries, output, gated pair, down, and two of the per-layer embedding; once: the token table and, in
  // bf16, the per-layer projection.
  double q8 = 0, others = 0;
  for (const StepWeights& part : g.step) (part.type == DType::q8_0 ? q8 : others) += part.products;
  EXPECT_EQ(q8 + others, 35 * 6 + 2);
  const auto starts = [&](int n) { return predict_step(device(), g, both(DType::q8_0), n).cost->starts * 1e6; };
  const double products = 2 * q8 + 3 * (others);
  EXPECT_NEAR(starts(512), products + 35 * 5 + 4 * 2, 1e-6);
  EXPECT_NEAR(starts(513), products + 28 * 5 + 7 * 12 + 4 * 2, 1e-6);
  const ModelGeometry wide = test::geometry("gemma4-31b", "q8_0");  // 50 of 60 layers have windows of 1024
  const auto more = [&](int n) { return predict_step(device(), wide, both(DType::q8_0), n).cost->starts * 1e6; };
  EXPECT_NEAR(more(4096) - more(512), 50 * (9 - 5) + 10 * (12 - 5), 1e-6);
}

TEST(Cost, PromptsOfLaunchesPayStartsForEveryStep) {
  const ModelGeometry g = test::geometry("gemma4-e2b");  // every row passes 14 layers, and the last one's queries
  const auto starts = [&](int n, int n_ubatch) {
    return predict_prompt(device(), g, both(DType::q8_0), n, 0, n_ubatch).cost->starts * 1e6;
  };
  double products = 0;
  for (const StepWeights& part : g.step)
    products += part.prompt_products * (part.type == DType::q8_0 ? 15 : 20);
  EXPECT_NEAR(starts(2048, 512) - starts(2048, 1024), 2 * (products + 14 * 40 + g.n_prompt_norms() * 2), 1e-6);
  const Prediction p = predict_prompt(device(), g, both(DType::q8_0), 512, 0, 512);
  EXPECT_NEAR(p.cost->rest, 512 * (15 * 2e-9 + 0.25e-9 * double(g.prompt_normed())), 1e-9);
}

TEST(Cost, ExpertsAreReadAsOftenAsTheyAreUsed) {
  const ModelGeometry g = test::geometry("gemma4-26b-a4b");
  EXPECT_LT(double(g.step_bytes()), 0.25 * double(g.file_bytes));
}

TEST(MachineTable, SurvivesJson) {
  const MachineTable t = invented();
  EXPECT_EQ(to_json(machine_from_json(to_json(t), "t.json")), to_json(t));
  EXPECT_EQ(machine_name("cpu", "A/B (c)", 2), "cpu-A_B__c_-t2.json");
}

TEST(MachineTable, BadOnesAreRefusedByField) {
  const auto refused = [](std::string text, const char* part) {
    try {
      machine_from_json(text, "t.json");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadFile);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused("{", "t.json: is not JSON");
  refused("[]", "t.json: is not an object");
  refused("{}", "field 'kind' is missing");
  std::string text = to_json(invented());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  refused(with("\"schema\": 1", "\"schema\": 9"), "field 'schema' is 9");
  refused(with("\"read_gb_per_s\": 24.0", "\"read_gb_per_s\": -1"), "field 'read_gb_per_s'");
  refused(with("\"q8_0\"", "\"q9_9\""), "field 'type' is 'q9_9'");
}

TEST(QualityTable, SurvivesJsonAndReplacesRows) {
  QualityTable t;
  t.fingerprint = "ab";
  t.model = "gemma3 270M q4_k_m";
  QualityRow row;
  row.types = {DType::tbq4_ht, DType::tbq3_ht, DType::tbq4_h, DType::tbq3_h};
  row.n_ctx = 2048;
  row.n_tokens = 5000;
  row.mean = 0.0012;
  row.date = "2026-01-01T00:00:00Z";
  add_row(t, row);
  row.mean = 0.0011;
  add_row(t, row);
  ASSERT_EQ(t.rows.size(), 1u);
  EXPECT_DOUBLE_EQ(t.rows[0].mean, 0.0011);
  row.n_tokens = 100;
  row.mean = 0.9;
  add_row(t, row);  // a quick look with the same kernels
  EXPECT_DOUBLE_EQ(t.rows[0].mean, 0.0011);
  row.n_ctx = 512;
  row.n_tokens = 4000;
  row.mean = 0.0030;
  add_row(t, row);
  ASSERT_EQ(t.rows.size(), 2u);
  const QualityTable again = quality_from_json(to_json(t), "q.json");
  EXPECT_EQ(to_json(again), to_json(t));
  ASSERT_TRUE(find_quality(again, row.types));
  EXPECT_DOUBLE_EQ(find_quality(again, row.types)->mean, 0.0030);  // the worst window decides
  row.n_ctx = 64;
  row.n_tokens = kMinScored - 1;
  row.mean = 0.5;
  add_row(t, row);
  EXPECT_DOUBLE_EQ(find_quality(t, row.types)->mean, 0.0030);  // too few tokens to say
  EXPECT_FALSE(find_quality(again, both(DType::tbq4_h)));
  EXPECT_THROW(quality_from_json("{\"kind\": \"machine\"}", "q.json"), Error);
}

}  // namespace
}  // namespace kvasir::decide
