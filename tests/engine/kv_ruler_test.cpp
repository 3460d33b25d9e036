// The ruler on a model's own vectors, and the same measure on Gaussian ones against the known figures.
#include "engine/kv_ruler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "engine/tiny.h"
#include "formats/format.h"

namespace kvasir::test {
namespace {

using engine::KvRulerGroup;

std::vector<float> gaussian(size_t n) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

TEST(KvRuler, GaussianVectorsGiveTheTheory) {
  const auto x = gaussian(512 * 1000);
  for (DType type : {DType::q8_0, DType::tbq4_0, DType::tbq3_h, DType::tbq4_h}) {
    const formats::Format& format = formats::require(type);
    for (int d : {64, 512}) {
      const auto row = engine::measure_rows(format, formats::kValues, d, x, 2);
      EXPECT_NEAR(row.nmse / format.theory(d), 1, 0.03) << format.name << ' ' << d;
      EXPECT_GE(row.worst, row.nmse);
      EXPECT_NEAR(row.bits_lost, format.bits_per_value(d) - 0.5 * std::log2(1 / row.nmse), 1e-9);
    }
  }
  const auto exact = engine::measure_rows(formats::require(DType::f32), formats::kKeys, 64, x, 1);
  EXPECT_EQ(exact.nmse, 0);
  EXPECT_TRUE(std::isnan(exact.bits_lost));
}

// Each vector counts alike: a norm of its own changes nothing.
TEST(KvRuler, NormsDoNotMatter) {
  auto x = gaussian(256 * 64);
  const auto& format = formats::require(DType::tbq4_h);
  const auto plain = engine::measure_rows(format, formats::kKeys, 256, x, 1);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(float(int(i / 256 % 7)) - 3);
  const auto scaled = engine::measure_rows(format, formats::kKeys, 256, x, 1);
  EXPECT_NEAR(scaled.nmse / plain.nmse, 1, 1e-3);
  EXPECT_EQ(engine::measure_rows(format, formats::kKeys, 256, std::vector<float>(512), 1).nmse, 0);
}

TEST(KvRuler, EveryClassAndSideOfAModel) {
  const auto ids = reference().array<text::Token>("long.ids");
  engine::KvRulerOptions options;
  options.n_ctx = 128;
  options.max_chunks = 2;
  options.max_rows = 300;
  const auto groups = engine::kv_ruler(tiny(), ids, options);
  ASSERT_EQ(groups.size(), 4u);
  int layers = 0;
  for (const KvRulerGroup& group : groups) {
    EXPECT_EQ(group.head_dim, group.window > 0 ? 256 : 512);
    layers += group.n_layers;
    EXPECT_GT(group.n_rows, 100);
    EXPECT_LT(group.n_rows, 400);
    double f16 = 1, h3 = 0, h4 = 0, ht4 = 0;
    for (const engine::KvRulerRow& row : group.rows) {
      EXPECT_TRUE(formats::require(row.type).has_role(group.side));
      EXPECT_TRUE(std::isfinite(row.nmse));
      if (row.type == DType::f16) f16 = row.nmse;
      if (row.type == DType::tbq3_h) h3 = row.nmse;
      if (row.type == DType::tbq4_h) h4 = row.nmse;
      if (row.type == DType::tbq4_ht) ht4 = row.nmse;
    }
    EXPECT_LT(f16, 1e-6);
    EXPECT_LT(ht4, h4);
    EXPECT_LT(h4, h3);
    EXPECT_NEAR(h4, formats::require(DType::tbq4_h).theory(group.head_dim),
                0.002);  // a rotation makes them Gaussian
  }
  EXPECT_EQ(layers, 10);  // five layers own a cache, keys and values each
  options.n_ctx = 4096;
  EXPECT_THROW(engine::kv_ruler(tiny(), std::span(ids).first(500), options), Error);
}

}  // namespace
}  // namespace kvasir::test
