// tbq3_tcq: bytes and signs against the published description, the table against its recipe, paths, tables
// from a file, the published encoder.
#include "formats/tbq3_tcq.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "formats/basis.h"
#include "formats/tcq_levels.h"
#include "formats/theory.h"
#include "formats/trellis.h"

namespace kvasir::formats {
namespace {

using Floats = std::vector<float>;

Floats gaussian(uint64_t seed, size_t n) {
  Floats out;
  for (double v : theory::gaussians(seed, n)) out.push_back(float(v));
  return out;
}

// Bits of the stream one at a time.
int state_by_bits(const BlockTbq3Tcq& block, int t) {
  int state = 0;
  for (int k = 0; k < 9; ++k) state |= (block.stream[(3 * t + k) / 8] >> ((3 * t + k) % 8) & 1) << k;
  return state;
}

// Of a table trained on something else: half as many distinct levels, and no symmetry.
Floats other_levels() {
  Floats levels(512);
  for (size_t s = 0; s < 512; ++s)
    levels[s] = 0.9f * own_tcq_table().level[s ^ 1] + 0.0003f * float(s % 7) - 0.001f;
  return levels;
}

double nmse(const Format& format, const TcqTable* table, const Floats& x) {
  Floats y(x.size());
  std::vector<std::byte> row(format.row_bytes(int64_t(x.size())));
  format.encode_row(table, x.data(), row.data(), int64_t(x.size()));
  format.decode_row(table, row.data(), y.data(), int64_t(x.size()));
  double error = 0, energy = 0;
  for (size_t i = 0; i < x.size(); ++i)
    error += std::pow(double(x[i]) - y[i], 2), energy += double(x[i]) * x[i];
  return error / energy;
}

TEST(Tcq, DecodesRandomBytesAsPublished) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 50; ++trial) {
    BlockTbq3Tcq block;
    for (uint8_t& byte : block.stream) byte = uint8_t(random());
    block.zero = 0;
    block.d = f32_to_f16(float(trial) * 0.37f);
    Floats y(128);
    decode_block(block, y.data());
    for (int t = 0; t < 128; ++t)
      EXPECT_EQ(y[size_t(t)], own_tcq_table().level[size_t(state_by_bits(block, t))] * f16_to_f32(block.d));
  }
}

// state_t = o[t-2] | o[t-1] << 3 | o[t] << 6, and the stream ends in two zero bits and a zero byte.
TEST(Tcq, StatesAreTheLastThreeSymbols) {
  uint8_t symbols[130];
  for (int i = 0; i < 130; ++i) symbols[i] = uint8_t(i * 5 % 8);
  BlockTbq3Tcq block{};
  put_tcq_symbols(symbols[0] | symbols[1] << 3, symbols + 2, block);
  for (int t = 0; t < 128; ++t)
    EXPECT_EQ(tcq_state(block, t), symbols[t] | symbols[t + 1] << 3 | symbols[t + 2] << 6) << t;
  EXPECT_EQ(block.stream[48] >> 6, 0);
  EXPECT_EQ(block.zero, 0);
}

TEST(Tcq, PublishedSigns) {
  const uint8_t s1[16] = {0x59, 0x03, 0x6a, 0xe4, 0x49, 0x59, 0xf8, 0x42,
                          0xbb, 0x3b, 0xc6, 0xa4, 0xa9, 0x50, 0xf2, 0x49};
  const uint8_t s2[16] = {0x90, 0xee, 0xac, 0x16, 0xdc, 0x8f, 0x62, 0x3f,
                          0x7a, 0x35, 0xa5, 0xb7, 0x62, 0x65, 0xa5, 0xbe};
  for (size_t i = 0; i < 128; ++i) {
    Floats x(128), r(128);
    x[i] = 1;
    to_basis(Basis::kSignedBlock128, kValues, x.data(), r.data(), 128);
    for (size_t j = 0; j < 128; ++j) {
      const bool minus =
          (s1[i / 8] >> (i % 8) & 1) ^ (s2[j / 8] >> (j % 8) & 1) ^ (__builtin_popcountll(i & j) & 1);
      EXPECT_EQ(r[j], minus ? -0.08838834764831845f : 0.08838834764831845f) << i << ' ' << j;
    }
  }
}

// The committed table is one that generalised Lloyd over unit Gaussian rows leaves where it is.
TEST(Tcq, TableIsWhereTheRecipeEnds) {
  const TcqTable& table = own_tcq_table();
  const Floats x = gaussian(20260104, size_t(1) << 19);
  const Format& format = require(DType::tbq3_tcq);
  EXPECT_NEAR(nmse(format, nullptr, x), kTcqNmse, 0.01 * kTcqNmse);
  std::vector<double> sum(512), count(512);
  for (size_t at = 0; at < x.size(); at += 128) {
    BlockTbq3Tcq block;
    encode_block(&x[at], nullptr, block);
    double squares = 0;
    for (size_t i = 0; i < 128; ++i) squares += double(x[at + i]) * x[at + i];
    for (int t = 0; t < 128; ++t) {
      const auto s = size_t(tcq_state(block, t));
      sum[s] += x[at + size_t(t)] / std::sqrt(squares), ++count[s];
    }
  }
  Floats moved(512);
  double shift = 0;
  for (size_t s = 0; s < 512; ++s) {
    ASSERT_GT(count[s], 100) << s;
    moved[s] = float(sum[s] / count[s]);
    shift += std::pow(double(moved[s]) - table.level[s], 2) / 512;
    EXPECT_NEAR(table.level[s], double(kTcqLevels[s]) * kTcqUnit, 1e-7);
  }
  EXPECT_LT(std::sqrt(shift), 0.03 / std::sqrt(128.0));  // of a value's root mean square
  const auto better = make_tcq_table(moved, "moved");
  EXPECT_GT(nmse(format, better.get(), gaussian(7, 1 << 18)),
            0.995 * nmse(format, nullptr, gaussian(7, 1 << 18)));
}

TEST(Tcq, RoundedLevelsOfTheOwnTableAreExact) {
  const TcqTable& table = own_tcq_table();
  for (int s = 0; s < 512; ++s) {
    EXPECT_EQ(mirrored_state(mirrored_state(s)), s);
    EXPECT_EQ(table.rounded[size_t(mirrored_state(s))], kTcqLevels[s]);
    EXPECT_NEAR(table.level[size_t(s)], table.step * float(kTcqLevels[s]), 1e-7);
  }
  EXPECT_EQ(table.hash.size(), 64u);
}

// No path costs less than the one found: changing any one symbol never helps.
TEST(Tcq, NoSingleChangeIsBetter) {
  const auto* table = own_tcq_table().rounded.data();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    int8_t x[128];
    uint8_t best[128];
    const auto values = theory::gaussians(seed, 128);
    for (int i = 0; i < 128; ++i) x[i] = int8_t(std::lround(std::clamp(values[size_t(i)], -3.0, 3.0) * 37));
    const int start = Trellis<3>::search_open(x, 128, table, best);
    const auto cost = [&] {
      int sum = 0, state = start;
      for (int t = 0; t < 128; ++t) {
        state = (state << 3 | best[t]) & 511;
        sum += (x[t] - table[state]) * (x[t] - table[state]);
      }
      return sum;
    };
    const int found = cost();
    for (int t = 0; t < 128; ++t) {
      const uint8_t kept = best[t];
      for (int o = 0; o < 8; ++o) {
        best[t] = uint8_t(o);
        EXPECT_GE(cost(), found);
      }
      best[t] = kept;
    }
  }
}

// Costs in f32 with free ends; the scale is the ratio of the norms. Ours finds its path by whole numbers,
// which costs half a percent at most, least-squares scale included.
TEST(Tcq, PublishedEncoder) {
  double published = 0, ours = 0, energy = 0;
  int same = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Floats x = gaussian(seed, 128);
    Floats r(128), y(128);
    to_basis(Basis::kSignedBlock128, kKeys, x.data(), r.data(), 128);
    BlockTbq3Tcq a, b, own;
    encode_tcq_published_from(own_tcq_table(), x.data(), a);
    encode_tcq_published(own_tcq_table(), r.data(), b);
    same += std::memcmp(&a, &b, sizeof a) == 0;
    double norm = 0, levels = 0;
    for (int t = 0; t < 128; ++t)
      norm += double(x[size_t(t)]) * x[size_t(t)],
          levels += std::pow(own_tcq_table().level[size_t(tcq_state(a, t))], 2);
    EXPECT_NEAR(f16_to_f32(a.d), std::sqrt(norm / levels), std::sqrt(norm / levels) * 0x1p-11);
    encode_block(r.data(), nullptr, own);
    const auto error = [&](const BlockTbq3Tcq& block) {
      decode_block(block, y.data());
      double sum = 0;
      for (size_t i = 0; i < 128; ++i) sum += std::pow(double(r[i]) - y[i], 2);
      return sum;
    };
    published += error(a), ours += error(own), energy += norm;
  }
  EXPECT_GE(same, 98);  // the two differ only where rounding decides
  EXPECT_LT(ours, 1.005 * published);
  EXPECT_NEAR(published / energy, 0.0182, 0.0005);
}

TEST(Tcq, AwkwardBlocks) {
  const Format& format = require(DType::tbq3_tcq);
  for (float value : {0.0f, 1e-30f, 3e-8f, 65504.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Floats x(256, value), y(256);
    x[200] = -1;
    std::vector<std::byte> row(format.row_bytes(256));
    format.encode(x.data(), row.data(), 256);
    format.decode(row.data(), y.data(), 256);
    for (float v : y) EXPECT_TRUE(std::isfinite(v)) << value;
    format.encode_published(x.data(), row.data(), 256);
  }
}

TEST(TcqTable, AGivenOneReplacesOurs) {
  const auto table = make_tcq_table(other_levels(), "given");
  const Format& format = require(DType::tbq3_tcq);
  const Floats x = gaussian(3, 128 * 200);
  EXPECT_NE(table->hash, own_tcq_table().hash);
  const double with = nmse(format, table.get(), x);
  EXPECT_LT(with, 0.03);
  std::vector<std::byte> row(format.row_bytes(int64_t(x.size())));
  Floats y(x.size());
  format.encode_row(table.get(), x.data(), row.data(), int64_t(x.size()));
  format.decode(row.data(), y.data(), int64_t(x.size()));  // with the wrong table
  double error = 0, energy = 0;
  for (size_t i = 0; i < x.size(); ++i) error += std::pow(x[i] - y[i], 2), energy += x[i] * x[i];
  EXPECT_GT(error / energy, 1.2 * with);
}

std::string refusal(const std::vector<char>& bytes) {
  const std::string path = testing::TempDir() + "tcq_table.bin";
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
  try {
    load_tcq_table(path);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
    return error.what();
  }
}

TEST(TcqTable, FilesAreChecked) {
  Floats levels = other_levels();
  const auto bytes = [&] {
    std::vector<char> out(levels.size() * 4);
    std::memcpy(out.data(), levels.data(), out.size());
    return out;
  };
  EXPECT_EQ(refusal(bytes()), "");
  levels[17] = std::nanf("");
  EXPECT_NE(refusal(bytes()).find("level 17 (byte 68)"), std::string::npos);
  levels.assign(512, 0.0f);
  EXPECT_NE(refusal(bytes()).find("largest level"), std::string::npos);
  levels.resize(511);
  EXPECT_NE(refusal(bytes()).find("2044 bytes"), std::string::npos);
  EXPECT_THROW(load_tcq_table("/nonexistent.tcq"), Error);
  EXPECT_THROW(load_tcq_table(testing::TempDir()), Error);
}

}  // namespace
}  // namespace kvasir::formats
