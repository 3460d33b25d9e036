// What holds for every row of list.def: sizes, round trips, determinism, awkward input, names and refusals.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "base/cpu_features.h"
#include "base/error.h"
#include "base/half.h"
#include "formats/format.h"
#include "formats/iq4_levels.h"
#include "formats/search_isa.h"
#include "formats/theory.h"

namespace kvasir::formats {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> encode(const Format& format, const std::vector<float>& x) {
  std::vector<std::byte> bytes(format.row_bytes(int64_t(x.size())));
  format.encode(x.data(), bytes.data(), int64_t(x.size()));
  return bytes;
}

std::vector<float> decode(const Format& format, const std::vector<std::byte>& bytes, size_t n) {
  std::vector<float> out(n);
  format.decode(bytes.data(), out.data(), int64_t(n));
  return out;
}

std::vector<float> gaussian_floats(uint64_t seed, size_t n, float scale = 1) {
  std::vector<float> out;
  for (double v : theory::gaussians(seed, n)) out.push_back(float(v) * scale);
  return out;
}

double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < x.size(); ++i)
    error += std::pow(double(x[i]) - y[i], 2), energy += std::pow(double(x[i]), 2);
  return error / energy;
}

bool is_plain(const Format& format) { return format.block == 1; }

class Codec : public testing::TestWithParam<Format> {};

TEST_P(Codec, SizeIsWholeAndStatedBitsHold) {
  const Format& format = GetParam();
  EXPECT_EQ(format.row_bytes(2048), 2048 / format.block * format.block_bytes);
  EXPECT_DOUBLE_EQ(format.bits_per_value(4096), 8.0 * double(format.row_bytes(4096)) / 4096);
  EXPECT_NE(format.roles, 0u);
}

TEST_P(Codec, ZerosStayZeros) {
  const Format& format = GetParam();
  const std::vector<float> zeros(512);
  for (float v : decode(format, encode(format, zeros), 512)) EXPECT_EQ(v, 0.0f);
}

TEST_P(Codec, SecondEncodingLosesNothingMuch) {
  const Format& format = GetParam();
  const auto x = gaussian_floats(3, 4096, 0.02f);
  const auto once = decode(format, encode(format, x), x.size());
  const auto twice = decode(format, encode(format, once), x.size());
  if (is_plain(format)) {
    EXPECT_EQ(once, twice);
  }
  if (format.type == DType::qjl1_256) GTEST_SKIP() << "an estimate: its own estimate is another";
  EXPECT_LE(relative_error(once, twice), format.theory_nmse * 0.25);
}

TEST_P(Codec, SmallAndLargeScalesKeepTheError) {
  const Format& format = GetParam();
  for (float scale : {0.004f, 0.02f, 40.0f, 3000.0f}) {
    const auto x = gaussian_floats(5, 1 << 14, scale);
    // The f16 scale of the smallest rows is subnormal and coarse; f16 itself too.
    const double slack = scale < 0.01f ? 1.5 : 1.06;
    EXPECT_LE(relative_error(x, decode(format, encode(format, x), x.size())), format.theory_nmse * slack)
        << scale;
  }
}

TEST_P(Codec, EncodeIsDeterministicAndIgnoresAlignment) {
  const Format& format = GetParam();
  const auto x = gaussian_floats(9, 1024);
  const auto first = encode(format, x);
  std::vector<std::byte> shifted(first.size() + 1);
  format.encode(x.data(), shifted.data() + 1, 1024);
  EXPECT_EQ(std::memcmp(first.data(), shifted.data() + 1, first.size()), 0);
  std::vector<float> out(1024);
  format.decode(shifted.data() + 1, out.data(), 1024);
  EXPECT_EQ(out, decode(format, first, 1024));
}

TEST_P(Codec, BlocksAreIndependent) {
  const Format& format = GetParam();
  const auto x = gaussian_floats(11, 512);
  const auto whole = encode(format, x);
  const std::vector<float> tail(x.begin() + 256, x.end());
  const auto part = encode(format, tail);
  EXPECT_EQ(std::memcmp(whole.data() + whole.size() - part.size(), part.data(), part.size()), 0);
}

TEST_P(Codec, AwkwardValuesGiveFiniteCodes) {
  const Format& format = GetParam();
  const float awkward[] = {kNan,     kInf,  -kInf, 3.4e38f, -3.4e38f, 1e-45f, -1e-38f,
                           65504.0f, 1e30f, -1e9f, 1e-20f,  -0.0f,    8e6f,   kNan};
  for (size_t at = 0; at < std::size(awkward); ++at) {
    for (int mode = 0; mode < 3; ++mode) {
      std::vector<float> x = mode == 0 ? std::vector<float>(256, awkward[at]) : gaussian_floats(13, 256);
      if (mode == 1) x[17] = awkward[at];
      if (mode == 2)
        for (size_t i = 0; i < 256; i += 3) x[i] = awkward[(at + i) % std::size(awkward)];
      const auto out = decode(format, encode(format, x), 256);
      for (size_t i = 0; i < 256; ++i) {
        if (is_plain(format)) {
          EXPECT_EQ(std::isnan(out[i]), std::isnan(x[i]));
        } else {
          EXPECT_TRUE(std::isfinite(out[i])) << "value " << awkward[at] << " mode " << mode << " at " << i;
        }
      }
    }
  }
}

TEST_P(Codec, OneNanDoesNotSpoilItsNeighbours) {
  const Format& format = GetParam();
  auto x = gaussian_floats(15, 256);
  x[100] = kNan;
  auto out = decode(format, encode(format, x), 256);
  x[100] = out[100] = 0;
  EXPECT_LE(relative_error(x, out), format.theory_nmse * 1.4 + 1e-12);
}

TEST_P(Codec, ImportanceMovesTheErrorAway) {
  const Format& format = GetParam();
  if (is_plain(format) || format.name == "q8_0" || !format.has_role(kWeights)) GTEST_SKIP() << "no search";
  const auto x = gaussian_floats(17, 1 << 14);
  std::vector<float> importance(x.size());
  for (size_t i = 0; i < x.size(); ++i) importance[i] = i % 4 == 0 ? 50.0f : 1.0f;
  std::vector<std::byte> weighted(format.row_bytes(int64_t(x.size())));
  format.encode_weighted(x.data(), importance.data(), weighted.data(), int64_t(x.size()));
  const auto plain = decode(format, encode(format, x), x.size()), better = decode(format, weighted, x.size());
  double error_plain = 0, error_better = 0;
  for (size_t i = 0; i < x.size(); i += 4) {
    error_plain += std::pow(x[i] - plain[i], 2);
    error_better += std::pow(x[i] - better[i], 2);
  }
  EXPECT_LT(error_better, error_plain * 0.9);
}

TEST_P(Codec, AwkwardImportanceIsHarmless) {
  const Format& format = GetParam();
  const auto x = gaussian_floats(19, 256);
  for (float bad : {0.0f, kNan, kInf, -1.0f, 1e38f, 1e-38f}) {
    const std::vector<float> importance(256, bad);
    std::vector<std::byte> bytes(format.row_bytes(256));
    format.encode_weighted(x.data(), importance.data(), bytes.data(), 256);
    EXPECT_LE(relative_error(x, decode(format, bytes, 256)), format.theory_nmse * 1.8 + 1e-12) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Codec, testing::ValuesIn(theory::block_formats()),
                         [](const auto& info) { return std::string(info.param.name); });

// Every instruction set's search gives the bits of the generic one.
TEST(Search, SameBitsOnEveryInstructionSet) {
  std::vector<const SearchFunctions*> rows;
#if defined(__x86_64__)
  if (cpu_supports(Isa::kAvx2)) rows.push_back(&search_avx2());
  if (cpu_supports(Isa::kAvx512)) rows.push_back(&search_avx512());
#endif
  if (rows.empty()) GTEST_SKIP() << "only the generic search runs here";
  const SymmetricSpec specs[] = {{{-4, 3}, {-0.9f, 0.15f, 1}, -32, 31, 16, 16},
                                 {{-32, 31}, {-8.0f, 0.6f, 1}, -128, 127, 16, 16},
                                 {kIq4Grid, kIq4Trials, -32, 31, 8, 32}};
  const ScaleMinSpec min_specs[] = {{4, {-0.5f, 0.1f, 1}, 15, 16, 16}, {32, {-3.0f, 0.35f, 1}, 63, 8, 32}};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto x = gaussian_floats(seed, 256, std::ldexp(1.0f, int(seed) - 20));
    std::vector<float> w(256);
    fit_weights(x.data(), seed % 2 ? x.data() : nullptr, 2.0f, 256, w.data());
    for (const SearchFunctions* row : rows) {
      for (const SymmetricSpec& spec : specs) {
        SymmetricSuperblock a, b;
        search_generic().fit_symmetric_superblock(spec, x.data(), w.data(), a);
        row->fit_symmetric_superblock(spec, x.data(), w.data(), b);
        EXPECT_EQ(std::memcmp(&a, &b, sizeof a), 0) << seed;
      }
      for (const ScaleMinSpec& spec : min_specs) {
        ScaleMinSuperblock a, b;
        search_generic().fit_min_superblock(spec, x.data(), w.data(), a);
        row->fit_min_superblock(spec, x.data(), w.data(), b);
        EXPECT_EQ(std::memcmp(&a, &b, sizeof a), 0) << seed;
      }
    }
  }
}

TEST(Plain, EveryHalfDecodesToItsValue) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = uint16_t(i);
  std::vector<float> out(halves.size());
  require(DType::f16)
      .decode(reinterpret_cast<const std::byte*>(halves.data()), out.data(), int64_t(out.size()));
  for (size_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(f16_to_f32(uint16_t(i)))) << i;
}

TEST(Table, NamesAndIdsAreUnique) {
  std::set<std::string_view> names;
  std::set<uint32_t> ids;
  for (const Format& format : all()) {
    EXPECT_TRUE(names.insert(format.name).second) << format.name;
    EXPECT_TRUE(ids.insert(uint32_t(format.type)).second) << format.name;
    EXPECT_EQ(find(format.type), &format);
    EXPECT_EQ(find(format.name), &format);
    EXPECT_EQ(&require(format.type), &format);
  }
}

TEST(Table, Roles) {
  EXPECT_EQ(names(kKeys),
            "f32 f16 bf16 q8_0 q4_0 q5_0 tbq3_0 tbq4_0 qjl1_256 q4_polar tbq3_tcq tbq2_h tbq3_h tbq4_h tbq2_ht tbq3_ht tbq4_ht");
  EXPECT_EQ(names(kValues),
            "f32 f16 bf16 q8_0 q4_0 q5_0 tbq3_0 tbq4_0 q4_polar tbq3_tcq tbq2_h tbq3_h tbq4_h tbq2_ht tbq3_ht tbq4_ht");
  EXPECT_EQ(&require("q8_0", kKeys), find("q8_0"));
}

template <typename Call>
std::string message_of(ErrorCode code, Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Table, RefusalsNameWhatWouldWork) {
  const auto unknown = message_of(ErrorCode::kRefused, [] { require("q9_9", kWeights); });
  EXPECT_NE(unknown.find("q9_9"), std::string::npos);
  EXPECT_NE(unknown.find("q4_k"), std::string::npos);
  const auto role = message_of(ErrorCode::kRefused, [] { require("q4_k", kValues); });
  EXPECT_NE(role.find("cannot hold values"), std::string::npos);
  EXPECT_EQ(role.find("q6_k"), std::string::npos);
  const auto fork = message_of(ErrorCode::kRefused, [] { require(DType(50)); });
  EXPECT_NE(fork.find("tbq4_k"), std::string::npos);
  EXPECT_NE(fork.find("general.quantized_by"), std::string::npos);
  EXPECT_NE(message_of(ErrorCode::kRefused, [] { require(DType(49)); }).find("tbq3_k"), std::string::npos);
  EXPECT_NE(message_of(ErrorCode::kRefused, [] { require(DType(39)); }).find("mxfp4"), std::string::npos);
  EXPECT_NE(message_of(ErrorCode::kRefused, [] { require(DType(999)); }).find("999"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::formats
