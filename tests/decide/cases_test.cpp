// Memory cases with numbers from the field.
#include <gtest/gtest.h>

#include "decide/inputs.h"

namespace kvasir::decide {
namespace {

constexpr uint64_t kMb = 1000000, kMiB = uint64_t(1) << 20;

// A model with `weights` bytes and six global caches: 13056 bytes a token in q8_0, 24576 in f16.
ModelGeometry model(uint64_t weights, int n_ctx, int n_caches = 6) {
  ModelGeometry g;
  g.name = "case";
  g.n_layer = n_caches;
  g.n_embd = 2048;
  g.n_ff = 8192;
  g.n_vocab = 32000;
  g.n_ctx_train = n_ctx;
  g.file_bytes = weights;
  g.step = {{DType::q8_0, weights, 0, 0}};
  g.step[0].prompt_bytes = g.step[0].prompt_values = weights;
  g.classes = {{"global", n_caches, n_caches, 16, 2, 512, 0, n_caches}};
  g.head_dims.assign(size_t(n_caches), 512);
  g.prompt_layers = n_caches;
  for (int i = 0; i < n_caches; ++i)
    g.caches.push_back({.layer = i, .head_dim = 512, .n_kv = 2, .window = 0, .k_type = {}, .v_type = {}});
  return g;
}

Row decide_with(const ModelGeometry& g, uint64_t usable_bytes, bool exact, int n_ctx = 0) {
  Request request;
  request.memory = usable_bytes;
  request.prefer_exact = exact;
  request.n_ctx = n_ctx;
  return decide_row(g, nullptr, request, test::whole(test::cpu()));
}

TEST(Cases, ExactCacheOnlyWhenItCostsNoContext) {
  const ModelGeometry g = model(5529 * kMb, 131072);
  const Row tight = decide_with(g, 8053 * kMb, true);
  EXPECT_TRUE(tight.types == test::both(DType::q8_0)) << tight.reason;
  EXPECT_EQ(tight.n_ctx, 131072);
  EXPECT_EQ(*tight.ctx_fits, 131072);
  const Row roomy = decide_with(g, 65536 * kMb, true);
  EXPECT_TRUE(roomy.types == test::both(DType::f16)) << roomy.reason;
  EXPECT_EQ(roomy.n_ctx, 131072);
  EXPECT_TRUE(decide_with(g, 65536 * kMb, false).types == test::both(DType::q8_0));
}

TEST(Cases, WeightsThatLeaveNoRoomAreRefused) {
  const Row row = decide_with(model(2200 * kMb, 131072), 2300 * kMb, false);
  EXPECT_TRUE(row.no_memory) << row.reason;
  EXPECT_NE(row.reason.find("required: "), std::string::npos);
  EXPECT_NE(row.reason.find("usable: "), std::string::npos);
  EXPECT_NE(row.reason.find("largest that fits: "), std::string::npos) << row.reason;
}

TEST(Cases, APhoneIsHeldToItsWholeFootprint) {
  const uint64_t budget = uint64_t(5461) * kMiB;  // of 8 GiB
  EXPECT_FALSE(decide_with(model(4722 * kMiB, 8192, 2), budget, false, 8192).no_memory);
  const Row large = decide_with(model(8000 * kMb, 8192, 2), budget, false, 8192);
  EXPECT_TRUE(large.no_memory);
  EXPECT_NE(large.reason.find("the weights alone do not fit"), std::string::npos) << large.reason;
  const Row nearly = decide_with(model(5461 * kMiB - 1, 8192, 2), budget, false, 8192);
  EXPECT_TRUE(nearly.no_memory);
}

TEST(Cases, ContextsAroundTheOldSpillFloorAreAllTheSame) {
  const ModelGeometry g = model(1000 * kMb, 131072);
  for (const int n_ctx : {65535, 65536, 65537}) {
    const uint64_t need = memory_need(g, {}, n_ctx, 512, true).total();
    EXPECT_FALSE(decide_with(g, need, false, n_ctx).no_memory) << n_ctx;
    EXPECT_TRUE(decide_with(g, need - 1, false, n_ctx).no_memory) << n_ctx;
  }
}

}  // namespace
}  // namespace kvasir::decide
