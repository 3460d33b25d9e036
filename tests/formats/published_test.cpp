// The published types: constants by their recipes, bytes and scores against published values, bases against
// definitions.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "formats/basis.h"
#include "formats/format.h"
#include "formats/q4_polar.h"
#include "formats/qjl1_256.h"
#include "formats/tbq_0.h"
#include "formats/theory.h"

namespace kvasir::formats {
namespace {

using Floats = std::vector<float>;

Floats gaussian(uint64_t seed, size_t n, double mean = 0) {
  Floats out;
  for (double v : theory::gaussians(seed, n)) out.push_back(float(v + mean));
  return out;
}

double nmse(const Floats& x, const Floats& y) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < x.size(); ++i)
    error += std::pow(double(x[i]) - y[i], 2), energy += double(x[i]) * x[i];
  return error / energy;
}

// A row through its basis, the codec and back.
Floats round_trip(const Format& format, const Floats& x, bool published = false) {
  Floats r(x.size()), y(x.size());
  std::vector<std::byte> row(format.row_bytes(int64_t(x.size())));
  to_basis(format.basis, kKeys, x.data(), r.data(), int64_t(x.size()));
  (published ? format.encode_published : format.encode)(r.data(), row.data(), int64_t(x.size()));
  format.decode(row.data(), r.data(), int64_t(x.size()));
  from_basis(format.basis, kKeys, r.data(), y.data(), int64_t(x.size()));
  return y;
}

TEST(Basis, EachIsOrthonormalAndComesBack) {
  const Floats x = gaussian(1, 512), q = gaussian(2, 512);
  for (Basis basis :
       {Basis::kModel, Basis::kHeadWide, Basis::kBlock32, Basis::kBlock128, Basis::kSignedBlock128})
    for (Role side : {kKeys, kValues}) {
      Floats rx(512), rq(512), back(512);
      to_basis(basis, side, x.data(), rx.data(), 512);
      to_basis(basis, side, q.data(), rq.data(), 512);
      from_basis(basis, side, rx.data(), back.data(), 512);
      double dot = 0, rotated = 0;
      for (size_t i = 0; i < 512; ++i) {
        EXPECT_NEAR(back[i], x[i], 2e-6);
        dot += double(q[i]) * x[i], rotated += double(rq[i]) * rx[i];
      }
      EXPECT_NEAR(rotated, dot, 1e-4);
    }
}

TEST(Basis, HadamardHasTheBitsOfItsButterflies) {
  for (const int n : {4, 32, 128, 512}) {
    std::vector<float> x = gaussian(91, size_t(n)), plain;
    plain = x;
    hadamard(x.data(), n);
    for (int distance = 1; distance < n; distance *= 2)
      for (int i = 0; i < n; ++i) {
        if (i & distance) continue;
        const float a = plain[size_t(i)], b = plain[size_t(i + distance)];
        plain[size_t(i)] = a + b;
        plain[size_t(i + distance)] = a - b;
      }
    EXPECT_EQ(std::memcmp(x.data(), plain.data(), x.size() * sizeof(float)), 0) << n;
  }
}

TEST(Basis, SignsOf32) {
  const char* signs = "+-++-+--++-+--+--++-+--++-+--+-+";
  for (int i = 0; i < 32; ++i) {
    Floats x(32), r(32);
    x[size_t(i)] = 1;
    to_basis(Basis::kBlock32, kKeys, x.data(), r.data(), 32);
    EXPECT_FLOAT_EQ(r[0], (signs[i] == '+' ? 1.0f : -1.0f) * 0.1767766952966369f) << i;
  }
}

// Published errors on unit Gaussian 128-vectors: as shipped, and with a least-squares scale.
TEST(Published, ErrorsAreThePublishedOnesAndOursAreSmaller) {
  const Floats x = gaussian(5, 1 << 20);
  const auto error = [&](const char* name, bool published) {
    return nmse(x, round_trip(*find(name), x, published));
  };
  EXPECT_NEAR(error("tbq3_0", true), 0.0326, 0.0326 * 0.01);
  EXPECT_NEAR(error("tbq4_0", true), 0.00895, 0.00895 * 0.01);
  EXPECT_NEAR(error("q4_polar", true), 0.00933, 0.00933 * 0.01);
  EXPECT_NEAR(error("tbq3_0", false), 0.0308, 0.0308 * 0.01);
  EXPECT_NEAR(error("tbq4_0", false), 0.00836, 0.00836 * 0.01);
  EXPECT_LT(error("q4_polar", false), error("q4_polar", true));
}

TEST(Published, ResidualBitMakesPolarWorse) {
  const Floats x = gaussian(6, 128 * 1024);
  double plain = 0, with_bit = 0, energy = 0;
  for (size_t at = 0; at < x.size(); at += 128) {
    BlockQ4Polar block;
    encode_polar(&x[at], true, block);
    float a[128], b[128];
    decode_polar(block, false, a);
    decode_polar(block, true, b);
    for (size_t i = 0; i < 128; ++i) {
      plain += std::pow(double(x[at + i]) - a[i], 2), with_bit += std::pow(double(x[at + i]) - b[i], 2);
      energy += double(x[at + i]) * x[at + i];
    }
  }
  EXPECT_NEAR(plain / energy, 0.00934, 0.0001);
  EXPECT_NEAR(with_bit / energy, 0.01068, 0.00012);
}

TEST(Published, PolarLevelsAreAHundredLloydIterations) {
  std::vector<double> levels(16);
  for (size_t i = 0; i < 16; ++i) levels[i] = -4 + (double(i) + 0.5) / 2;
  const auto density = [](double x) {
    return std::isinf(x) ? 0.0 : std::exp(-x * x / 2) / std::sqrt(2 * 3.14159265358979323846);
  };
  const auto mass = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  for (int pass = 0; pass < 100; ++pass) {
    std::vector<double> next(16);
    for (size_t i = 0; i < 16; ++i) {
      const double low = i ? (levels[i - 1] + levels[i]) / 2 : -INFINITY,
                   high = i < 15 ? (levels[i] + levels[i + 1]) / 2 : INFINITY;
      next[i] = (density(low) - density(high)) /
                ((std::isinf(high) ? 1 : mass(high)) - (std::isinf(low) ? 0 : mass(low)));
    }
    levels = next;
  }
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(kPolarLevels[i], levels[i], 2e-7) << i;
  for (size_t i = 0; i < 15; ++i) EXPECT_NEAR(kPolarMidpoints[i], (levels[i] + levels[i + 1]) / 2, 2e-7) << i;
}

TEST(Published, PolarResidualSigns) {
  const uint8_t mask[16] = {0xfb, 0x34, 0xcb, 0xc5, 0xab, 0x17, 0x34, 0x5c,
                            0x0a, 0xef, 0x86, 0x25, 0x4e, 0xd9, 0xda, 0x68};
  for (int i = 0; i < 128; ++i) EXPECT_EQ(kPolarSigns[size_t(i)], mask[i / 8] >> (i % 8) & 1 ? -1 : 1) << i;
}

TEST(Published, ProjectionStartsWithThePublishedBits) {
  EXPECT_EQ(std::bit_cast<uint32_t>(qjl_projection()[0]), 0xbedc5dbau);
  EXPECT_EQ(std::bit_cast<uint32_t>(qjl_projection()[1]), 0xbed02187u);
}

// sqrt(pi / 2) / 256 |k| sum +- s is an unbiased estimate of q . k with a standard deviation of 0.078 |q|
// |k|.
TEST(Published, QjlScoreIsUnbiased) {
  double sum = 0, squares = 0;
  const int n = 2000;
  for (int trial = 0; trial < n; ++trial) {
    const Floats q = gaussian(uint64_t(1000 + trial), 128), k = gaussian(uint64_t(50000 + trial), 128);
    BlockQjl1_256 block;
    encode_block(k.data(), nullptr, block);
    float sketch[kSketch];
    qjl_sketch(q.data(), sketch);
    double dot = 0, nq = 0, nk = 0, estimate = 0;
    for (size_t i = 0; i < 128; ++i)
      dot += double(q[i]) * k[i], nq += double(q[i]) * q[i], nk += double(k[i]) * k[i];
    for (int j = 0; j < kSketch; ++j) estimate += block.signs[j / 8] >> (j % 8) & 1 ? sketch[j] : -sketch[j];
    const double error = (kSketchScale * bf16_to_f32(block.norm) * estimate - dot) / std::sqrt(nq * nk);
    sum += error, squares += error * error;
  }
  EXPECT_NEAR(std::sqrt(squares / n), 0.078, 0.004);
  EXPECT_NEAR(sum / n, 0, 4 * 0.078 / std::sqrt(double(n)));
}

// A mean that every value shares goes into one coefficient of a transform without signs, and clips there.
TEST(Published, ConstantVectorsShowWhoHasSigns) {
  const Floats constant(128, 1.0f);
  EXPECT_GT(nmse(constant, round_trip(*find("q4_polar"), constant)), 0.2);
  EXPECT_LT(nmse(constant, round_trip(*find("tbq4_h"), constant)), 0.02);
}

}  // namespace
}  // namespace kvasir::formats
