// tbq2_h, tbq3_h, tbq4_h: bytes, basis, error, awkward rows.
#include "formats/tbq_h.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "formats/head_wide.h"
#include "formats/ruler.h"
#include "formats/theory.h"

namespace kvasir::formats {
namespace {

constexpr int kHeadDims[] = {64, 128, 256, 512};
constexpr DType kTypes[] = {DType::tbq2_h, DType::tbq3_h, DType::tbq4_h};

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

int bits_of(DType type) { return int(type) - int(DType::tbq2_h) + 2; }

template <typename Call>
void for_each_row_kind(const Call& call) {
  for (DType type : kTypes)
    for (int d : kHeadDims) {
      SCOPED_TRACE(std::string(find(type)->name) + " at " + std::to_string(d));
      call(type, d);
    }
}

Floats gaussian(uint64_t seed, size_t n, double scale = 1) {
  Floats out;
  for (double v : theory::gaussians(seed, n)) out.push_back(float(v * scale));
  return out;
}

Bytes encode(DType type, const Floats& r, EncodeStatus want = EncodeStatus::kOk) {
  Bytes row(find(type)->row_bytes(int64_t(r.size())), std::byte(0xa5));
  EXPECT_EQ(encode_rotated(type, r.data(), row.data(), int64_t(r.size())), want);
  return row;
}

Floats decode(DType type, const Bytes& row, int d) {
  Floats r(static_cast<size_t>(d));
  decode_rotated(type, row.data(), r.data(), d);
  return r;
}

// Positive levels of the committed table, in double precision.
std::vector<double> positive_levels(int bits, int d) {
  const size_t at = d == 64 ? 0 : d == 128 ? 1 : d == 256 ? 2 : 3;
  const auto take = [](const auto& row, int head_dim) {
    EXPECT_EQ(row.head_dim, head_dim);
    return std::vector<double>(std::begin(row.positive), std::end(row.positive));
  };
  if (bits == 2) return take(kHeadWideLevels2[at], d);
  if (bits == 3) return take(kHeadWideLevels3[at], d);
  return take(kHeadWideLevels4[at], d);
}

std::vector<double> all_levels(int bits, int d) {
  std::vector<double> out;
  const auto half = positive_levels(bits, d);
  for (auto it = half.rbegin(); it != half.rend(); ++it) out.push_back(-*it);
  out.insert(out.end(), half.begin(), half.end());
  return out;
}

// Mean of |x| over angles [a, b] with x = sqrt(d) sin t, whose density is cos^(d-2) t: Simpson's rule.
double cell_mean(int d, double a, double b) {
  constexpr int kSteps = 400;
  double top = 0, bottom = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const double t = a + (b - a) * i / kSteps, w = (i % kSteps == 0 ? 1
                                                    : i % 2         ? 4
                                                                    : 2) *
                                                   std::pow(std::cos(t), d - 2);
    top += w * std::sqrt(double(d)) * std::sin(t);
    bottom += w;
  }
  return top / bottom;
}

// The recipe, by another quadrature in another variable: iterate until still.
TEST(HeadWideLevels, AreLloydMaxOnTheSphere) {
  for_each_row_kind([](DType type, int d) {
    const auto committed = positive_levels(bits_of(type), d);
    const double root = std::sqrt(double(d));
    std::vector<double> levels(committed.size());
    for (size_t i = 0; i < levels.size(); ++i) levels[i] = 0.2 + 2.6 * double(i) / double(levels.size());
    for (double moved = 1; moved > 1e-10;) {
      moved = 0;
      auto next = levels;
      for (size_t i = 0; i < levels.size(); ++i) {
        const double low = i ? (levels[i - 1] + levels[i]) / 2 : 0;
        const double high = i + 1 < levels.size() ? (levels[i] + levels[i + 1]) / 2 : 7.0;
        next[i] = cell_mean(d, std::asin(low / root), std::asin(high / root));
        moved = std::max(moved, std::fabs(next[i] - levels[i]));
      }
      levels = next;
    }
    for (size_t i = 0; i < levels.size(); ++i) EXPECT_NEAR(committed[i], levels[i], 1e-6) << i;
  });
}

TEST(HeadWide, SizesAndBits) {
  for_each_row_kind([](DType type, int d) {
    const Format& format = *find(type);
    EXPECT_EQ(format.row_bytes(d), size_t(d * bits_of(type) / 8 + 2));
    EXPECT_DOUBLE_EQ(format.bits_per_value(d), bits_of(type) + 16.0 / d);
    EXPECT_TRUE(format.head_wide());
    EXPECT_TRUE(format.takes(d));
    EXPECT_EQ(format.roles, uint32_t(kKeys | kValues));
  });
  for (int64_t n : {0, 32, 80, 96, 112, 192, 576, 1024}) EXPECT_FALSE(find("tbq4_h")->takes(n)) << n;
  EXPECT_EQ(uint32_t(find("tbq2_h")->type), 64u);
  EXPECT_EQ(uint32_t(find("tbq3_h")->type), 65u);
  EXPECT_EQ(uint32_t(find("tbq4_h")->type), 66u);
  EXPECT_DOUBLE_EQ(find("tbq4_h")->theory_nmse, find("tbq4_h")->theory(256));
  EXPECT_DOUBLE_EQ(find("tbq3_h")->theory_nmse, find("tbq3_h")->theory(256));
  EXPECT_DOUBLE_EQ(find("tbq2_h")->theory_nmse, find("tbq2_h")->theory(256));
}

TEST(HeadWide, OtherSizesAndTypesAreRefused) {
  float x[600]{};
  std::byte row[600];
  for (int64_t n : {80, 96, 576}) {
    EXPECT_THROW(rotate(kKeys, x, x, n), Error) << n;
    EXPECT_THROW(encode_rotated(DType::tbq4_h, x, row, n), Error) << n;
    EXPECT_THROW(encode_head(DType::tbq4_h, kKeys, x, row, n), Error) << n;
    EXPECT_THROW(decode_rotated(DType::tbq4_h, row, x, n), Error) << n;
  }
  EXPECT_THROW(encode_rotated(DType::q8_0, x, row, 64), Error);
}

// Bytes written by hand: scale 2, codes 0 1 2 ... in order.
TEST(HeadWide, BytesByHand) {
  for_each_row_kind([](DType type, int d) {
    const int bits = bits_of(type), n_levels = 1 << bits;
    const auto levels = all_levels(bits, d);
    Bytes row(find(type)->row_bytes(d));
    for (int p = 0; p < d * bits; ++p) {  // bit p of the row is bit p % bits of code p / bits
      const int code = p / bits % n_levels;
      if ((code >> (p % bits)) & 1) row[size_t(p / 8)] |= std::byte(1 << (p % 8));
    }
    row[row.size() - 1] = std::byte(0x40);  // f16 2.0, little-endian
    Floats out(static_cast<size_t>(d));
    find(type)->decode(row.data(), out.data(), d);
    for (int i = 0; i < d; ++i) EXPECT_EQ(out[size_t(i)], 2 * float(levels[size_t(i % n_levels)])) << i;
    EXPECT_EQ(decode(type, row, d), out);
  });
  Bytes three(26);
  three[0] = std::byte(0b11'010'001), three[1] = std::byte(0b0'100'011'1);  // codes 1 2 7 3 4
  three[24] = std::byte(0x00), three[25] = std::byte(0x3c);
  const auto levels = all_levels(3, 64);
  const auto y = decode(DType::tbq3_h, three, 64);
  const int codes[] = {1, 2, 7, 3, 4, 0, 0};
  for (size_t i = 0; i < std::size(codes); ++i) EXPECT_EQ(y[i], float(levels[size_t(codes[i])])) << i;
}

// What encode writes, against the definition written again in double precision.
TEST(HeadWide, EncodeIsTheDefinition) {
  for_each_row_kind([](DType type, int d) {
    const auto levels = all_levels(bits_of(type), d);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Floats r = gaussian(100 + seed, size_t(d), std::ldexp(1.0, int(seed) - 8));
      const Bytes row = encode(type, r);
      double energy = 0, top = 0, bottom = 0;
      for (float v : r) energy += double(v) * v;
      uint16_t scale;
      std::memcpy(&scale, row.data() + row.size() - 2, 2);
      const Floats y = decode(type, row, d);
      for (int i = 0; i < d; ++i) {
        const double v = r[size_t(i)] / std::sqrt(energy / d);
        size_t code = 0;
        while (code + 1 < levels.size() && v - (levels[code] + levels[code + 1]) / 2 > 0) ++code;
        EXPECT_EQ(y[size_t(i)], f16_to_f32(scale) * float(levels[code])) << i;
        top += r[size_t(i)] * levels[code];
        bottom += levels[code] * levels[code];
      }
      EXPECT_NEAR(f16_to_f32(scale), top / bottom, top / bottom * 0x1p-11);
    }
  });
}

TEST(HeadWide, F16RowsGiveTheBytesOfTheirValues) {
  for_each_row_kind([](DType type, int d) {
    Floats r = gaussian(5, size_t(d));
    std::vector<uint16_t> half;
    for (float& v : r) half.push_back(f32_to_f16(v)), v = f16_to_f32(half.back());
    Bytes row(find(type)->row_bytes(d));
    EXPECT_EQ(encode_rotated(type, half.data(), row.data(), d), EncodeStatus::kOk);
    EXPECT_EQ(row, encode(type, r));
  });
}

TEST(HeadWide, FormatTableIsTheRotatedCodec) {
  for_each_row_kind([](DType type, int d) {
    const Format& format = *find(type);
    const Floats r = gaussian(6, size_t(d));
    Bytes row(format.row_bytes(d) + 1), weighted(format.row_bytes(d));
    format.encode(r.data(), row.data() + 1, d);  // no alignment asked
    EXPECT_EQ(Bytes(row.begin() + 1, row.end()), encode(type, r));
    format.encode_weighted(r.data(), r.data(), weighted.data(), d);
    EXPECT_EQ(weighted, encode(type, r));
  });
}

// A row whose root mean square is exactly 1 and that holds exact midpoints.
TEST(HeadWide, TiesGoToTheLowerCode) {
  for (int d : kHeadDims) {
    const auto& book = head_codebook<2>(d);
    for (int code = 0; code < 3; ++code) {
      EXPECT_EQ(head_code<2>(book, book.midpoint[size_t(code)]), code);
      EXPECT_EQ(head_code<2>(book, std::nextafter(book.midpoint[size_t(code)], 9.0f)), code + 1);
    }
    for (int code = 0; code < 15; ++code)
      EXPECT_EQ(head_code<4>(head_codebook<4>(d), head_codebook<4>(d).midpoint[size_t(code)]), code);
  }
  // Zero lies on the middle boundary: half the row zero, half +-sqrt(2), so the root mean square is about 1.
  Floats r(64);
  for (size_t i = 0; i < 64; i += 2) r[i] = i % 4 ? 1.5f : -1.5f;
  const Bytes row = encode(DType::tbq4_h, r);
  for (size_t i = 1; i < 64; i += 2) EXPECT_EQ(int(row[i / 2]) >> 4, 7) << i;
}

TEST(Rotation, RoundTripIsOrthonormal) {
  for (int d : kHeadDims)
    for (Role side : {kKeys, kValues}) {
      const Floats x = gaussian(11, size_t(d)), q = gaussian(12, size_t(d));
      Floats r(x.size()), s(q.size()), back(x.size());
      rotate(side, x.data(), r.data(), d);
      rotate(side, q.data(), s.data(), d);
      unrotate(side, r.data(), back.data(), d);
      double dot = 0, rotated_dot = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(back[i], x[i], 2e-6);
        dot += double(x[i]) * q[i];
        rotated_dot += double(r[i]) * s[i];
      }
      EXPECT_NEAR(dot, rotated_dot, 1e-4);
      Floats in_place = x;
      rotate(side, in_place.data(), in_place.data(), d);
      EXPECT_EQ(in_place, r);
    }
}

// The matrix itself: column j holds sign_j (-1)^popcount(i & j) / sqrt(d).
TEST(Rotation, IsTheSignedHadamardMatrix) {
  for (int d : kHeadDims)
    for (Role side : {kKeys, kValues})
      for (int j : {0, 1, d / 2 + 3, d - 1}) {
        Floats x(static_cast<size_t>(d)), r(x.size());
        x[size_t(j)] = 1;
        rotate(side, x.data(), r.data(), d);
        for (int i = 0; i < d; ++i)
          EXPECT_FLOAT_EQ(r[size_t(i)],
                          float(head_sign(side, j) * (std::popcount(unsigned(i & j)) % 2 ? -1 : 1) /
                                std::sqrt(double(d))));
      }
}

TEST(Rotation, SignsAreSplitmix64OfTheSeed) {
  for (Role side : {kKeys, kValues}) {
    uint64_t state = 0x6b76617369720040ull + (side == kValues ? 1 : 0), word = 0;
    int negative = 0;
    for (int i = 0; i < 512; ++i) {
      if (i % 64 == 0) {
        uint64_t z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        word = z ^ (z >> 31);
      }
      EXPECT_EQ(head_sign(side, i), (word >> (i % 64)) & 1 ? -1 : 1) << i;
      negative += head_sign(side, i) < 0;
    }
    EXPECT_NEAR(negative, 256, 40);
  }
}

// NMSE over rows of d values from `x` through the whole path: rotate, encode, decode, rotate back.
double nmse(DType type, int d, const Floats& x, Role side = kKeys) {
  Bytes row(find(type)->row_bytes(d));
  Floats y(static_cast<size_t>(d));
  double error = 0, energy = 0;
  for (size_t at = 0; at + size_t(d) <= x.size(); at += size_t(d)) {
    EXPECT_EQ(encode_head(type, side, x.data() + at, row.data(), d), EncodeStatus::kOk);
    decode_head(type, side, row.data(), y.data(), d);
    for (size_t i = 0; i < y.size(); ++i) {
      error += std::pow(double(x[at + i]) - y[i], 2);
      energy += std::pow(double(x[at + i]), 2);
    }
  }
  return error / energy;
}

TEST(HeadWide, ErrorIsLloydsIntegral) {
  const Floats x = gaussian(20260102, 1 << 18);
  for_each_row_kind([&](DType type, int d) {
    const double theory = find(type)->theory(d);
    for (Role side : {kKeys, kValues}) EXPECT_NEAR(nmse(type, d, x, side), theory, 0.02 * theory);
  });
  // Expected of the whole program, from its design.
  EXPECT_NEAR(find("tbq4_h")->theory(128), 0.00914, 2e-5);
  EXPECT_NEAR(find("tbq4_h")->theory(256), 0.00931, 2e-5);
  EXPECT_NEAR(find("tbq4_h")->theory(512), 0.00941, 2e-5);
  EXPECT_NEAR(find("tbq3_h")->theory(128), 0.0335, 5e-5);
  EXPECT_NEAR(find("tbq3_h")->theory(256), 0.0340, 5e-5);
  EXPECT_NEAR(find("tbq3_h")->theory(512), 0.0342, 1e-4);
}

// Eight channels at ten sigma: the rotation spreads them, a block of 32 cannot.
TEST(HeadWide, OutlierChannelsCostNothing) {
  for_each_row_kind([](DType type, int d) {
    Floats x = gaussian(77, 1 << 17);
    for (size_t at = 0; at < x.size(); at += size_t(d))
      for (size_t channel : {1, 10, 17, 23, 38, 44, 51, 62})
        x[at + channel * size_t(d) / 64 + channel % 2] *= 10;
    const double found = nmse(type, d, x), theory = find(type)->theory(d);
    EXPECT_LE(found, theory);
    EXPECT_GE(found, 0.8 * theory);  // lower tails than a Gaussian's, as few channels make up the sum
    if (type != DType::tbq4_h) return;
    Floats y(x.size());
    Bytes blocks(find("q4_0")->row_bytes(int64_t(x.size())));
    find("q4_0")->encode(x.data(), blocks.data(), int64_t(x.size()));
    find("q4_0")->decode(blocks.data(), y.data(), int64_t(x.size()));
    double error = 0, energy = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += std::pow(double(x[i]) - y[i], 2);
      energy += std::pow(double(x[i]), 2);
    }
    EXPECT_LT(found, 0.9 * error / energy) << "q4_0 has half a bit more and no rotation";
  });
}

TEST(HeadWide, ScaleOfTheInputDoesNotMatter) {
  for_each_row_kind([](DType type, int d) {
    for (double scale : {0.02, 40.0, 3000.0})
      EXPECT_NEAR(nmse(type, d, gaussian(9, 1 << 14, scale)), find(type)->theory(d),
                  0.06 * find(type)->theory(d))
          << scale;
  });
}

TEST(HeadWide, ZeroAndTinyRowsAreZeroBytes) {
  for_each_row_kind([](DType type, int d) {
    for (float v : {0.0f, -0.0f, 1e-45f, 1e-9f, -1e-20f}) {
      const Bytes row = encode(type, Floats(size_t(d), v));
      EXPECT_EQ(row, Bytes(row.size())) << v;
      for (float y : decode(type, row, d)) EXPECT_EQ(y, 0.0f);
    }
  });
}

TEST(HeadWide, WhatIsNotFiniteOrTooLargeIsReported) {
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  for_each_row_kind([](DType type, int d) {
    const Floats good = gaussian(3, size_t(d));
    for (float bad : {kNan, kInf, -kInf})
      for (size_t at : {size_t(0), size_t(d - 1)}) {
        Floats r = good;
        r[at] = bad;
        const Bytes row = encode(type, r, EncodeStatus::kNotFinite);
        EXPECT_EQ(row, Bytes(row.size()));
        Bytes whole(row.size());
        EXPECT_EQ(encode_head(type, kValues, r.data(), whole.data(), d), EncodeStatus::kNotFinite);
        // The table's own encode gives some finite row.
        find(type)->encode(r.data(), whole.data(), d);
        for (float y : decode(type, whole, d)) EXPECT_TRUE(std::isfinite(y));
      }
    for (float large : {1e6f, 1e20f, 3.4e38f}) {
      const Floats r(size_t(d), large);
      const Bytes row = encode(type, r, EncodeStatus::kOverflow);
      EXPECT_EQ(row, Bytes(row.size()));
    }
    Floats spike(size_t(d), 0.0f);
    spike[7] = 0x1.8p27f;
    encode(type, spike, EncodeStatus::kOverflow);
    spike[7] = 65504;  // all that f16 holds is welcome
    encode(type, spike);
    const auto y = decode(type, encode(type, Floats(size_t(d), 40000.0f)), d);
    EXPECT_NEAR(y[0], 40000, 40000 * 0x1p-9);
  });
}

TEST(Ruler, ScalarTypesMeetTheBar) {
  EXPECT_LE(ruler(*find("tbq4_h"), 512).bits_lost, 0.67);
  EXPECT_LE(ruler(*find("tbq3_h"), 512).bits_lost, 0.60);
}

TEST(Ruler, HeadWideTypesLoseLessThanBlockTypes) {
  for (int d : kHeadDims) {
    double worst = 0;  // of the head-wide types
    for (DType type : kTypes) worst = std::max(worst, ruler(*find(type), d).bits_lost);
    for (const Format& format : all()) {
      if (!format.has_role(kKeys)) continue;
      if (!format.takes(d)) {
        EXPECT_THROW(ruler(format, d), Error) << format.name;
        continue;
      }
      const Ruler r = ruler(format, d);
      SCOPED_TRACE(std::string(format.name) + " at " + std::to_string(d));
      EXPECT_DOUBLE_EQ(r.bits_per_value, format.bits_per_value(d));
      EXPECT_NEAR(r.nmse, r.theory, 0.02 * r.theory);
      if (r.nmse == 0) {
        EXPECT_TRUE(std::isnan(r.bits_lost));
        continue;
      }
      EXPECT_NEAR(r.bits_lost, r.bits_per_value + 0.5 * std::log2(r.nmse), 1e-12);
      if (format.block == 32) {
        EXPECT_LT(worst, r.bits_lost);
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::formats
