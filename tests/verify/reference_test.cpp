// The double-precision reference itself: its parts against facts that are known from elsewhere, and the
// scalar codecs against it.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/half.h"
#include "formats/format.h"
#include "formats/head_wide.h"
#include "verify/reference/attention.h"
#include "verify/reference/basis.h"
#include "verify/reference/codec.h"
#include "verify/reference/half.h"
#include "verify/reference/lloyd.h"
#include "verify/reference/random.h"

namespace kvasir::verify::reference {
namespace {

TEST(Reference, SplitMixMatchesItsPublishedSequence) {
  uint64_t state = 1234567;
  EXPECT_EQ(splitmix64(state), 6457827717110365317u);
  EXPECT_EQ(splitmix64(state), 3203168211198807973u);
}

TEST(Reference, LevelsAreThoseOfTheSphere) {
  // research: 3 bits and 4 bits on the 128-sphere, to five digits.
  const auto& three = sphere_levels(3, 128).level;
  const double expected3[] = {0.24443, 0.75332, 1.33657, 2.13143};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(three[size_t(4 + i)], expected3[i], 5e-5) << i;
  const auto& four = sphere_levels(4, 128).level;
  const double expected4[] = {0.12788, 0.38634, 0.65358, 0.93702, 1.24769, 1.60426, 2.04582, 2.68875};
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(four[size_t(8 + i)], expected4[i], 3e-4) << i;
    EXPECT_EQ(four[size_t(7 - i)], -four[size_t(8 + i)]);
  }
  // The published expectations of head-wide rows at 128, 256, 512.
  EXPECT_NEAR(sphere_levels(4, 128).nmse, 0.00914, 3e-5);
  EXPECT_NEAR(sphere_levels(4, 256).nmse, 0.00931, 3e-5);
  EXPECT_NEAR(sphere_levels(4, 512).nmse, 0.00941, 3e-5);
  EXPECT_NEAR(sphere_levels(3, 128).nmse, 0.0335, 1e-4);
  EXPECT_NEAR(sphere_levels(3, 512).nmse, 0.0342, 1.5e-4);
}

TEST(Reference, TheoryIsWhatItsOwnCodecReaches) {
  for (const auto& [name, d] : {std::pair{"tbq2_h", 64}, {"tbq3_h", 128}, {"tbq4_h", 256}}) {
    const Codec& codec = *find_codec(name);
    Gaussian random(3);
    double error = 0, total = 0;
    std::vector<double> x(static_cast<size_t>(d)), y(static_cast<size_t>(d));
    std::vector<std::byte> row(codec.row_bytes(d));
    for (int r = 0; r < (1 << 20) / d; ++r) {
      for (double& v : x) v = random.next();
      codec.encode(x.data(), d, row.data());
      codec.decode(row.data(), d, y.data());
      for (int i = 0; i < d; ++i) {
        error += (y[size_t(i)] - x[size_t(i)]) * (y[size_t(i)] - x[size_t(i)]);
        total += x[size_t(i)] * x[size_t(i)];
      }
    }
    EXPECT_NEAR(error / total / codec.theory(d), 1, 0.012) << name;  // three deviations of 2^20 values
  }
}

// The trellis types: the product's paths pass, a path with one symbol changed or a neighbour's scale does
// not.
TEST(Reference, TrellisPathsAreHeldToTheBest) {
  for (const char* name : {"tbq2_ht", "tbq3_ht", "tbq4_ht"})
    for (int d : {64, 256, 512}) {
      const Codec& codec = *find_codec(name);
      const formats::Format& format = *formats::find(name);
      Gaussian random{static_cast<uint64_t>(d)};
      int wrong_symbol = 0, wrong_scale = 0;
      for (int r = 0; r < 12; ++r) {
        std::vector<double> x(static_cast<size_t>(d)), y(x);
        for (double& v : x) v = float(random.next());
        std::vector<float> in(x.begin(), x.end()), out(in);
        std::vector<std::byte> row(codec.row_bytes(d)), mine(row);
        ASSERT_EQ(row.size(), format.row_bytes(d));
        format.encode(in.data(), row.data(), d);
        codec.encode(x.data(), d, mine.data());
        const RowFaults faults = codec.check(x.data(), d, row.data(), mine.data());
        EXPECT_EQ(faults.codes, 0) << name << d << " cost " << faults.worst;
        EXPECT_EQ(faults.scales, 0) << name << d;
        format.decode(row.data(), out.data(), d);
        codec.decode(row.data(), d, y.data());
        for (int i = 0; i < d; ++i) EXPECT_FLOAT_EQ(out[size_t(i)], float(y[size_t(i)]));
        EXPECT_EQ(codec.check(x.data(), d, mine.data(), mine.data()).codes, 0) << name << d;
        auto changed = row;
        for (int i = 0; i < d / 8; i += 2) changed[size_t(i)] ^= std::byte(1);
        wrong_symbol += codec.check(x.data(), d, changed.data(), mine.data()).codes;
        changed = row;
        changed[row.size() - 2] ^= std::byte(4);
        wrong_scale += codec.check(x.data(), d, changed.data(), mine.data()).scales;
      }
      EXPECT_EQ(wrong_symbol, 12) << name << d;
      EXPECT_EQ(wrong_scale, 12) << name << d;
    }
}

TEST(Reference, HalfPrecisionOfEveryPattern) {
  for (int h = 0; h < 65536; ++h) {
    const double value = from_f16(uint16_t(h));
    EXPECT_TRUE(value == double(f16_to_f32(uint16_t(h))) || std::isnan(value)) << h;
    if (!std::isnan(value)) {
      EXPECT_EQ(to_f16(value), uint16_t(h));
    }
  }
  Gaussian random(1);
  for (int i = 0; i < 100000; ++i) {
    const float x = float(random.next() * std::exp(4 * random.next()));
    EXPECT_EQ(to_f16(double(x)), f32_to_f16(x));
    EXPECT_EQ(to_bf16(double(x)), f32_to_bf16(x));
  }
  EXPECT_EQ(to_f16(65520.0), 0x7c00);
  EXPECT_EQ(to_f16(65519.0), 0x7bff);
}

TEST(Reference, RotationIsTheCodecsRotation) {
  for (const int d : {64, 128, 256, 512})
    for (const Side side : {Side::kKeys, Side::kValues}) {
      Gaussian random{uint64_t(d)};
      const std::vector<float> x = random.vector(size_t(d));
      std::vector<double> r(x.begin(), x.end());
      rotate(side, r.data(), d);
      std::vector<float> got(static_cast<size_t>(d));
      formats::rotate(side == Side::kKeys ? formats::kKeys : formats::kValues, x.data(), got.data(), d);
      for (int i = 0; i < d; ++i) EXPECT_NEAR(got[size_t(i)], r[size_t(i)], 2e-6);
      unrotate(side, r.data(), d);
      for (int i = 0; i < d; ++i) EXPECT_NEAR(r[size_t(i)], double(x[size_t(i)]), 1e-14);
    }
}

// A row of the product's codec, then one bit of it at a time wrong: each must be noticed.
TEST(Reference, FindsEveryFlippedBitOfARow) {
  for (const std::string_view name : codec_names()) {
    if (!formats::find(name)) continue;
    const formats::Format& format = *formats::find(name);
    const Codec& codec = *find_codec(name);
    constexpr int d = 128;
    std::vector<float> x = Gaussian(11).vector(d);
    for (float& v : x) v = f16_to_f32(f32_to_f16(v));
    const std::vector<double> exact(x.begin(), x.end());
    std::vector<std::byte> row(format.row_bytes(d));
    format.encode(x.data(), row.data(), d);
    std::vector<std::byte> best(row);
    codec.encode(exact.data(), d, best.data());
    const RowFaults good = codec.check(exact.data(), d, row.data(), best.data());
    EXPECT_EQ(good.codes + good.scales, 0) << name;
    for (size_t bit = 0; bit < row.size() * 8; ++bit) {
      row[bit / 8] ^= std::byte(1 << bit % 8);
      const RowFaults bad = codec.check(exact.data(), d, row.data(), best.data());
      EXPECT_GT(bad.codes + bad.scales, 0) << name << " bit " << bit;
      row[bit / 8] ^= std::byte(1 << bit % 8);
    }
  }
}

// What every codec must do by itself, whether the product has the type yet or not.
TEST(Reference, CodecsTakeTheirOwnRows) {
  for (const std::string_view name : codec_names()) {
    const Codec& codec = *find_codec(name);
    Gaussian random(5);
    double error = 0, total = 0;
    for (int r = 0; r < 20; ++r) {
      std::vector<double> x(256), y(256);
      for (double& v : x) v = float(random.next());
      const std::vector<double> model = x;
      codec.to_basis(Side::kValues, x.data(), 256);
      std::vector<std::byte> row(codec.row_bytes(256));
      codec.encode(x.data(), 256, row.data());
      const RowFaults faults = codec.check(x.data(), 256, row.data(), row.data());
      EXPECT_EQ(faults.codes + faults.scales, 0) << name;
      codec.decode(row.data(), 256, y.data());
      codec.from_basis(Side::kValues, y.data(), 256);
      for (size_t i = 0; i < 256; ++i) {
        error += (y[i] - model[i]) * (y[i] - model[i]);
        total += model[i] * model[i];
      }
    }
    EXPECT_LT(error / total, name == "qjl1_256" ? 1.1 : name.starts_with("tbq2") ? 0.13 : 0.04) << name;
  }
  EXPECT_EQ(find_codec("q4_k"), nullptr);
}

TEST(Reference, ExactPagesByPositionOnly) {
  AttentionSpec spec;
  spec.exact_first = 2;
  spec.exact_last = 1;
  EXPECT_TRUE(reads_exact(spec, 9, 9));
  EXPECT_TRUE(reads_exact(spec, 9, 8));
  EXPECT_FALSE(reads_exact(spec, 9, 7));
  EXPECT_FALSE(reads_exact(spec, 9, 2));
  EXPECT_TRUE(reads_exact(spec, 9, 1));
}

TEST(Reference, SoftmaxByHand) {
  // Two keys with scores 0 and ln 3: weights 1/4 and 3/4.
  AttentionSpec spec{1, 1, 2, 0, 1, 0, 0, 0};
  Rows keys, values;
  keys.coded = {0, 0, std::log(3.0), 0};
  values.coded = {4, 8, 0, -8};
  const std::vector<float> q = {1, 0};
  const Scores scores = score_head(spec, keys, q, 1, 0);
  const Mixed mixed = mix_head(spec, scores, values, 1, 0);
  EXPECT_NEAR(scores.weight[0], 0.25, 1e-15);
  EXPECT_NEAR(mixed.out[0], 1, 1e-14);
  EXPECT_NEAR(mixed.out[1], -4, 1e-14);
  EXPECT_NEAR(mixed.spread[1], 8, 1e-14);
  spec.window = 1;
  EXPECT_EQ(score_head(spec, keys, q, 1, 0).score.size(), 1u);
}

}  // namespace
}  // namespace kvasir::verify::reference
