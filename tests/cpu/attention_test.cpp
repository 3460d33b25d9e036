// Attention against double precision, and the promise that a row's bits depend on nothing but the row.
#include "cpu/attention_fixture.h"

namespace kvasir::cpu::test {
namespace {

// Error against double precision over the same stored values. A score is one f32 chain over head_dim products
// of unit Gaussians, so its absolute error is about sqrt(head_dim) * 2^-24 * |q||k|/..., and weights carry it
// into the output.
constexpr double kTolerance = 3e-6;

// Types whose levels are read as 8-bit whole numbers, which attention's own bounds are about.
bool rounds_levels(DType type) {
  return formats::require(type).basis != formats::Basis::kModel || type == DType::qjl1_256;
}

// Types that are expanded into images first.
bool image(DType type) { return rounds_levels(type) && formats::require(type).name.back() != 'h'; }

// image_attention_test.cpp pairs these types with others: here they meet themselves and f16.
bool elsewhere(const AttentionInfo& info) {
  const auto known = [&](DType a, DType b) { return !image(a) || b == DType::f16 || b == a; };
  return !known(info.k, info.v) || !known(info.v, info.k);
}

// Both types have rows of n values.
bool take(const AttentionInfo& info, int n) {
  return formats::require(info.k).takes(n) && formats::require(info.v).takes(n);
}

std::string label(const AttentionInfo& info, const Shape& s) {
  return fmt::format("{} heads {}/{} dim {} window {}", attention_name(*info.variant), s.n_head, s.n_kv,
                     s.head_dim, s.window);
}

void check(const Shape& s, int n_keys, int first, int count, double tolerance = kTolerance) {
  for (const AttentionInfo& info : attention_variants()) {
    if (info.k != s.k || info.v != s.v) continue;
    if ((image(s.k) || image(s.v)) && info.isa != best_isa()) continue;  // image_attention_test.cpp has them
    Cache cache(s, n_keys, 1, info.isa);
    if (s.window) cache.evict_before(first - s.window + 1);
    const Queries queries(s, first, count);
    std::vector<double> spread;
    const auto want = reference(cache, queries, &spread);
    const auto got = attend(info.variant, cache, queries, count, 2);
    EXPECT_LT(worst(got, want, spread), tolerance) << label(info, s);
  }
}

TEST(Attention, MatchesDoublePrecisionAtEveryHeadSize) {
  for (int head_dim : attention_head_dims()) {
    const float scale = 1.0f / std::sqrt(float(head_dim));
    check({DType::f16, DType::f16, 8, 1, head_dim, 0, scale}, 700, 700 - 5, 5);
    check({DType::f32, DType::f32, 4, 2, head_dim, 0, scale}, 300, 100, 40);
  }
}

// Block types round the query, or the weights, to 16 bits of the largest; head-wide types the query and the
// levels to 8 (head_wide_attention_test.cpp and
// image_attention_test.cpp have their bounds).
double tolerance_of(DType k, DType v) {
  const auto block = [](DType type) { return formats::require(type).block > 1; };
  if (rounds_levels(k) || rounds_levels(v)) return 0.1;
  return block(k) || block(v) ? 3e-4 : kTolerance;
}

TEST(Attention, MatchesDoublePrecisionForEveryPair) {
  for (const AttentionInfo& info : attention_variants())
    if (info.isa == best_isa() && info.flash && !elsewhere(info))
      check({info.k, info.v, 4, 2, 128, 0, 0.088f}, 333, 330, 3, tolerance_of(info.k, info.v));
}

TEST(Attention, EveryGroupSizeAndOddHeadCounts) {
  for (auto [n_head, n_kv] :
       {std::pair{1, 1}, {2, 2}, {4, 2}, {4, 1}, {8, 1}, {3, 1}, {5, 5}, {6, 2}, {12, 1}, {16, 1}, {9, 3}})
    check({DType::f16, DType::f16, n_head, n_kv, 64}, 290, 280, 10);
}

TEST(Attention, FirstTokenSeesOnlyItself) {
  const Shape s{DType::f32, DType::f32, 4, 2, 64};
  for (const AttentionInfo& info : attention_variants()) {
    if (info.k != s.k || info.v != s.v) continue;
    const Cache cache(s, 1);
    const Queries queries(s, 0, 1);
    const auto got = attend(info.variant, cache, queries, 1, 1);
    for (int h = 0; h < 4; ++h)
      for (int d = 0; d < 64; ++d) EXPECT_EQ(got[size_t(h * 64 + d)], cache.v[size_t(h / 2 * 64 + d)]);
  }
}

TEST(Attention, WindowCountsTheCurrentToken) {
  for (int window : {1, 2, 31, 64, 65, 300, 512})
    for (int first : {0, 1, 63, 64, 500, 1000})
      check({DType::f16, DType::f16, 4, 1, 64, window}, first + 40, first, 40);
}

TEST(Attention, RaggedLengths) {
  for (int n : {1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 513, 2047, 2049, 4500})
    check({DType::f16, DType::f16, 2, 1, 64}, n, n - 1, 1);
}

TEST(Attention, SoftcapBoundsScores) {
  check({DType::f16, DType::f16, 8, 2, 128, 0, 1.0f, 5.0f}, 600, 590, 10, 2e-5);
  check({DType::f16, DType::f16, 8, 2, 128, 0, 1.0f, 50.0f}, 600, 590, 10, 2e-5);
}

TEST(Attention, LargeScoresStayFinite) {
  check({DType::f16, DType::f16, 2, 1, 256, 0, 8.0f}, 600, 590, 10, 2e-3);
}

// Keys in pages >= keep_pages meet q_shifted, wherever keep_pages cuts a chunk.
TEST(Attention, ShiftedQueryForKeptPages) {
  const Shape s{DType::f16, DType::f16, 8, 1, 128, 0, 0.09f};
  for (const AttentionInfo& info : attention_variants()) {
    if (info.k != s.k || info.v != s.v) continue;
    const Cache cache(s, 600);
    for (int keep : {0, 1, 2, 4, 9, 100}) {
      Queries queries(s, 590, 10);
      queries.shifted = gaussian(queries.q.size(), 77);
      queries.keep_pages = keep;
      std::vector<double> spread;
      const auto want = reference(cache, queries, &spread);
      EXPECT_LT(worst(attend(info.variant, cache, queries, 10, 2), want, spread), kTolerance) << keep;
    }
  }
}

// The same bits alone, in a batch of any size, with one thread or several, in prefill and in decode.
void expect_same_bits(const Shape& s, int n_keys, int first, bool every_isa = true) {
  for (const AttentionInfo& info : attention_variants()) {
    if (info.k != s.k || info.v != s.v) continue;
    if (info.isa != best_isa() && (!info.flash || !every_isa)) continue;
    const Cache cache(s, n_keys);
    const int count = n_keys - first;
    Queries queries(s, first, count);
    queries.shifted = gaussian(queries.q.size(), 78);
    queries.keep_pages = 3;
    const auto want = attend(info.variant, cache, queries, 1, 1);
    for (auto [batch, threads] : {std::pair{count, 1}, {count, 3}, {3, 2}, {64, 2}, {1, 2}}) {
      const auto got = attend(info.variant, cache, queries, batch, threads);
      EXPECT_EQ(0, std::memcmp(got.data(), want.data(), got.size() * sizeof(float)))
          << label(info, s) << " batch " << batch << " threads " << threads;
    }
  }
}

TEST(Attention, SameBitsForAnyBatchAndThreads) {
  expect_same_bits({DType::f16, DType::f16, 8, 1, 64}, 530, 360);
  expect_same_bits({DType::f32, DType::bf16, 2, 2, 64}, 700, 600);
  expect_same_bits({DType::f16, DType::f16, 4, 1, 128, 200}, 600, 450);
  expect_same_bits({DType::f16, DType::f32, 3, 1, 64, 512}, 620, 500);
  expect_same_bits({DType::q8_0, DType::q8_0, 8, 1, 64}, 300, 100);
  expect_same_bits({DType::q5_0, DType::q4_0, 2, 2, 64, 64}, 300, 100);
}

TEST(Attention, SameBitsOnRealThreads) {
  const Shape s{DType::f16, DType::f16, 8, 1, 64};
  const AttentionVariant* variant = find_attention(s.k, s.v, s.head_dim, best_isa(), true, nullptr);
  const Cache cache(s, 1200);
  ThreadPool pool(3);
  for (int first : {1100, 1199}) {
    const Queries queries(s, first, 1200 - first);
    const auto want = attend(variant, cache, queries, queries.n_rows, 1);
    EXPECT_EQ(want, attend(variant, cache, queries, queries.n_rows, pool.size(), &pool));
  }
}

// Far into a sequence decode works by spans of chunks, prefill by running merges.
TEST(Attention, SameBitsAcrossSpans) {
  expect_same_bits({DType::f16, DType::f16, 4, 1, 64}, 17000, 16994, false);
  expect_same_bits({DType::f16, DType::f16, 2, 2, 64}, 4200, 4100, false);
}

// Pages before the query's own that stay exact, at the start and just before it, in every position of a
// chunk.
TEST(Attention, ExactPagesFollowThePositionsRule) {
  for (const AttentionInfo& info : attention_variants()) {
    if (info.k != info.v || !formats::require(info.k).open_page() || !take(info, 64)) continue;
    if (image(info.k) && (info.isa != best_isa() || !info.flash)) continue;  // their scalar codecs are slow
    const Shape s{info.k, info.v, 4, 2, 64, 0, 0.125f};
    Cache cache(s, 700);
    for (auto [first, last] : {std::pair{0, 0}, {1, 0}, {0, 1}, {2, 3}, {0, 20}}) {
      if (image(info.k) && first != 2) continue;
      cache.exact_first = first;
      cache.exact_last = last;
      const Queries queries(s, 600, 100);
      std::vector<double> spread;
      const auto want = reference(cache, queries, &spread);
      const auto got = attend(info.variant, cache, queries, 100, 2);
      EXPECT_LT(worst(got, want, spread), tolerance_of(info.k, info.v))
          << label(info, s) << first << ' ' << last;
      const auto one = attend(info.variant, cache, queries, 1, 1);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], one[i]) << label(info, s) << " exact " << first << ' ' << last << " at " << i;
    }
  }
}

// A query that is not finite shows in its own row and head, for every type, and nowhere else.
TEST(Attention, QueryThatIsNotFiniteIsNotHidden) {
  for (const AttentionInfo& info : attention_variants()) {
    if (!take(info, 64) || elsewhere(info)) continue;
    const Shape s{info.k, info.v, 4, 1, 64};
    const Cache cache(s, 100);
    for (float bad : {std::nanf(""), INFINITY}) {
      Queries queries(s, 98, 2);
      queries.q[size_t(64 + 7)] = bad;  // row 0, head 1
      const auto got = attend(info.variant, cache, queries, 2, 1);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(std::isfinite(got[i]), i / 64 != 1) << attention_name(*info.variant) << " at " << i;
    }
  }
}

// One key holds nearly all the weight and the rest lie about the smallest 16-bit weight: the worst case of
// integer mixing. What is lost stays below half a step, 2^-16, a key.
TEST(Attention, IntegerMixingKeepsSmallWeights) {
  for (const AttentionInfo& info : attention_variants()) {
    if (!info.flash || info.k != DType::f32 || formats::require(info.v).block == 1) continue;
    if (rounds_levels(info.v)) continue;
    const Shape s{info.k, info.v, 1, 1, 64, 0, 1.0f};
    Cache cache(s, 256);
    for (float drop : {9.0f, 10.4f, 11.0f, 11.8f}) {
      std::fill(cache.k.begin(), cache.k.end(), 0.0f);
      for (int j = 1; j < 256; ++j) cache.k[size_t(j) * 64] = -drop;
      cache.stored_k = cache.exact_k = cache.k;
      ASSERT_EQ(cache.append(0, 256, info.isa), -1);
      Queries queries(s, 255, 1);
      std::fill(queries.q.begin(), queries.q.end(), 0.0f);
      queries.q[0] = 1;
      const auto got = attend(info.variant, cache, queries, 1, 1);
      const auto want = reference(cache, queries);
      float largest = 0;
      for (float v : cache.stored_v) largest = std::max(largest, std::fabs(v));
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 255 * 0x1p-16 * largest) << label(info, s) << " drop " << drop;
    }
  }
}

TEST(Attention, BoundCoversEveryPlan) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 3000; ++trial) {
    const auto infos = attention_variants();
    const AttentionInfo& info = infos[random() % infos.size()];
    AttentionArgs shape;
    shape.variant = info.variant;
    shape.n_kv = 1 << random() % 4;
    shape.n_head = shape.n_kv * int(1 + random() % 8);
    shape.head_dim = 64 << random() % 4;
    shape.window = random() % 2 ? 1 << (6 + random() % 5) : 0;
    const int n_ctx = 1 << (6 + random() % 12);
    const int max_rows = 1 << random() % 10;
    const AttentionPlan bound = bound_attention(shape, max_rows, n_ctx);
    const int n_rows = 1 + int(random() % uint32_t(std::min(max_rows, n_ctx)));
    const int far = shape.window ? int(random() % 100000) : 0;  // a ring of pages has no last position
    const int first = far + int(random() % uint32_t(n_ctx - n_rows + 1));
    std::vector<graph::Row> rows;
    for (int i = 0; i < n_rows; ++i) rows.push_back({0, first + i, 0, 0});
    shape.rows = rows.data();
    shape.n_rows = n_rows;
    const AttentionPlan plan = plan_attention(shape);
    EXPECT_LE(plan.shared_bytes, bound.shared_bytes);
    EXPECT_LE(plan.thread_bytes, bound.thread_bytes);
    EXPECT_LE(bound.shared_bytes, size_t(64) << 20);
  }
}

TEST(Attention, RefusalsNameWhatIsMissing) {
  std::string why;
  EXPECT_EQ(find_attention(DType::f16, DType::f16, 80, best_isa(), true, &why), nullptr);
  EXPECT_NE(why.find("head size 80"), std::string::npos) << why;
  EXPECT_NE(why.find("64 128 256 512"), std::string::npos) << why;
  EXPECT_EQ(find_attention(DType::q4_k, DType::f16, 128, best_isa(), false, &why), nullptr);
  EXPECT_NE(why.find("missing: K type"), std::string::npos) << why;
}

TEST(Attention, NamesTellTypesPathAndIsa) {
  const auto* variant = find_attention(DType::f16, DType::f32, 256, Isa::kGeneric, true, nullptr);
  ASSERT_NE(variant, nullptr);
  EXPECT_STREQ(attention_name(*variant), "f16/f32.flash.generic");
}

}  // namespace
}  // namespace kvasir::cpu::test
