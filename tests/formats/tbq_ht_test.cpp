// tbq2_ht, tbq3_ht, tbq4_ht: paths against an exhaustive definition, errors against theory and the ruler's
// bars, awkward rows.
#include "formats/tbq_ht.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "formats/basis.h"
#include "formats/ruler.h"
#include "formats/theory.h"

namespace kvasir::formats {
namespace {

constexpr DType kTypes[] = {DType::tbq2_ht, DType::tbq3_ht, DType::tbq4_ht};
constexpr int kHeadDims[] = {64, 128, 256, 512};

int bits_of(DType type) { return int(type) - int(DType::tbq2_ht) + 2; }

const int8_t* table_of(int bits) {
  return bits == 2 ? kTrellisTable2.level : bits == 3 ? kTrellisTable3.level : kTrellisTable4.level;
}

std::vector<float> gaussian(uint64_t seed, size_t n, double scale = 1) {
  std::vector<float> out;
  for (double v : theory::gaussians(seed, n)) out.push_back(float(v * scale));
  return out;
}

std::vector<std::byte> encode(const Format& format, const std::vector<float>& x) {
  std::vector<std::byte> row(format.row_bytes(int64_t(x.size())), std::byte(0xa5));
  format.encode(x.data(), row.data(), int64_t(x.size()));
  return row;
}

// Symbol i from the bit stream, bit by bit.
int symbol(const std::vector<std::byte>& row, int bits, int i) {
  int out = 0;
  for (int k = 0; k < bits; ++k) out |= (int(row[size_t(bits * i + k) / 8]) >> ((bits * i + k) % 8) & 1) << k;
  return out;
}

TEST(Trellis, DecodesAsDefined) {
  for (DType type : kTypes)
    for (int d : kHeadDims) {
      const Format& format = require(type);
      const int bits = bits_of(type), n_states = bits == 2 ? 256 : 512;
      const auto row = encode(format, gaussian(uint64_t(d), size_t(d)));
      uint16_t scale;
      std::memcpy(&scale, row.data() + d / 8 * bits, 2);
      std::vector<float> out(static_cast<size_t>(d));
      format.decode(row.data(), out.data(), d);
      for (int t = 0; t < d; ++t) {
        int state = 0;
        for (int back = 8; back >= 0; --back)
          state = (state << bits | symbol(row, bits, (t - back + d) % d)) % n_states;
        EXPECT_EQ(out[size_t(t)], f16_to_f32(scale) * float(table_of(bits)[state]))
            << format.name << " at " << t;
      }
    }
}

// No path through the seam that the search found costs less than the path it chose: changing any one symbol
// never helps.
template <int b>
void expect_equal_searches(const std::vector<int8_t>& x) {
  const int d = int(x.size());
  std::vector<uint8_t> plain(x.size()), wide(x.size());
  Trellis<b>::search(x.data(), d, table_of(b), plain.data());
  trellis_search<b>(x.data(), d, table_of(b), wide.data());
  EXPECT_EQ(plain, wide) << b << " bits, " << d;
  if constexpr (b == 3) {
    const int start = Trellis<b>::search_open(x.data(), d, table_of(b), plain.data());
    EXPECT_EQ(trellis_search_open(x.data(), d, table_of(b), wide.data()), start);
    EXPECT_EQ(plain, wide) << "open, " << d;
  }
}

TEST(Trellis, WiderVectorsFindTheSamePath) {
  for (const int d : kHeadDims)
    for (uint64_t seed = 1; seed < 5; ++seed) {
      std::vector<int8_t> x;
      for (const float v : gaussian(seed, size_t(d), seed == 4 ? 400 : 40))
        x.push_back(int8_t(std::clamp(v, -127.f, 127.f)));
      expect_equal_searches<2>(x);
      expect_equal_searches<3>(x);
      expect_equal_searches<4>(x);
    }
}

TEST(Trellis, NoSingleChangeIsBetter) {
  for (DType type : kTypes) {
    const int bits = bits_of(type), d = 64;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      std::vector<int8_t> x;
      for (double v : theory::gaussians(seed, size_t(d)))
        x.push_back(int8_t(std::lround(std::min(3.0, std::max(-3.0, v)) * 40)));
      std::vector<uint8_t> best(static_cast<size_t>(d));
      std::vector<uint16_t> states(static_cast<size_t>(d));
      const auto search = [&](auto b) { Trellis<b()>::search(x.data(), d, table_of(bits), best.data()); };
      const auto cost = [&](const std::vector<uint8_t>& symbols) {
        const auto follow = [&](auto b) { Trellis<b()>::states(symbols.data(), d, states.data()); };
        bits == 2   ? follow(std::integral_constant<int, 2>{})
        : bits == 3 ? follow(std::integral_constant<int, 3>{})
                    : follow(std::integral_constant<int, 4>{});
        int sum = 0;
        for (int t = 0; t < d; ++t)
          sum += (x[size_t(t)] - table_of(bits)[states[size_t(t)]]) *
                 (x[size_t(t)] - table_of(bits)[states[size_t(t)]]);
        return sum;
      };
      bits == 2   ? search(std::integral_constant<int, 2>{})
      : bits == 3 ? search(std::integral_constant<int, 3>{})
                  : search(std::integral_constant<int, 4>{});
      const int found = cost(best);
      for (int t = 8; t < d - 8; ++t)  // away from the seam, which pass 1 fixed
        for (int o = 0; o < 1 << bits; ++o) {
          auto other = best;
          other[size_t(t)] = uint8_t(o);
          EXPECT_GE(cost(other), found);
        }
    }
  }
}

TEST(Trellis, ReachesTheoryAtEveryHeadSize) {
  for (DType type : kTypes)
    for (int d : kHeadDims) {
      const Format& format = require(type);
      const auto x = gaussian(99, 1 << 18);
      double error = 0, energy = 0;
      std::vector<float> y(static_cast<size_t>(d));
      for (size_t at = 0; at < x.size(); at += size_t(d)) {
        const auto row = encode(format, {x.begin() + long(at), x.begin() + long(at) + d});
        format.decode(row.data(), y.data(), d);
        for (size_t i = 0; i < size_t(d); ++i)
          error += std::pow(double(x[at + i]) - y[i], 2), energy += std::pow(double(x[at + i]), 2);
      }
      EXPECT_NEAR(error / energy, format.theory(d), 0.02 * format.theory(d)) << format.name << " at " << d;
    }
}

// T9 of the design, and better than the scalar type of the same bits at every head size.
TEST(Trellis, BitsLostMeetTheBars) {
  const double bars[] = {0.20, 0.25, 0.35};
  for (DType type : kTypes) {
    EXPECT_LE(ruler(require(type), 512).bits_lost, bars[bits_of(type) - 2]) << require(type).name;
    for (int d : kHeadDims)
      EXPECT_LT(require(type).theory(d), 0.75 * require(DType(int(type) - 3)).theory(d))
          << require(type).name << d;
  }
}

TEST(Trellis, AwkwardRowsGiveFiniteValues) {
  const float inf = std::numeric_limits<float>::infinity();
  for (DType type : kTypes)
    for (float bad : {0.0f, -0.0f, 1e-30f, 65504.0f, 1e30f, inf, -inf, std::nanf(""), 3e-5f}) {
      const Format& format = require(type);
      for (int mode = 0; mode < 2; ++mode) {
        std::vector<float> x = mode ? gaussian(3, 128) : std::vector<float>(128, bad), y(128);
        x[7] = bad;
        const auto row = encode(format, x);
        EXPECT_EQ(row, encode(format, x));
        format.decode(row.data(), y.data(), 128);
        for (float v : y) EXPECT_TRUE(std::isfinite(v)) << bad;
        if (mode == 0 && bad == 0) {
          EXPECT_EQ(y, std::vector<float>(128));
        }
      }
    }
}

// Eight outlier channels at 10 sigma are spread by the rotation: the error stays that of Gaussian rows.
TEST(Trellis, OutlierChannelsCostNothing) {
  for (DType type : kTypes) {
    const Format& format = require(type);
    double error = 0, energy = 0;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      auto x = gaussian(seed, 256);
      for (size_t i = 0; i < 8; ++i) x[i * 31] *= 10;
      std::vector<float> r(256);
      to_basis(format.basis, kKeys, x.data(), r.data(), 256);
      const auto row = encode(format, r);
      format.decode(row.data(), r.data(), 256);
      from_basis(format.basis, kKeys, r.data(), r.data(), 256);
      for (size_t i = 0; i < 256; ++i)
        error += std::pow(double(x[i]) - r[i], 2), energy += double(x[i]) * x[i];
    }
    EXPECT_LT(error / energy, 1.05 * format.theory(256)) << format.name;
  }
}

}  // namespace
}  // namespace kvasir::formats
