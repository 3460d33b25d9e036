// Byte layouts: every type's decoder against formulas written from the published table of block layouts, on
// blocks of random bytes, and a few blocks whose values are worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/format.h"
#include "formats/tcq_levels.h"
#include "formats/theory.h"

namespace kvasir::formats {
namespace {

using Bytes = std::vector<uint8_t>;

// Own binary16 reader, so that the test does not lean on base/half.h.
double half(const Bytes& b, size_t at) {
  const int bits = b[at] | (b[at + 1] << 8), exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(double(mantissa), -24) : std::ldexp(double(1024 + mantissa), exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

double single(const Bytes& b, bool upper_half_only) {
  const size_t n = upper_half_only ? 2 : 4;
  uint32_t bits = 0;
  for (size_t i = 0; i < n; ++i) bits |= uint32_t(b[i]) << (8 * (i + 4 - n));
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

constexpr int kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Value j of a 32-value block with nibbles from byte `at`.
int nibble(const Bytes& b, size_t at, int j) {
  return j < 16 ? b[at + size_t(j)] & 15 : b[at + size_t(j) - 16] >> 4;
}
int bit(const Bytes& b, size_t at, int j) { return (b[at + size_t(j) / 8] >> (j % 8)) & 1; }

void k_scale_min(const Bytes& b, size_t at, int j, int& S, int& M) {
  const auto sc = [&](int i) { return int(b[at + size_t(i)]); };
  if (j < 4) {
    S = sc(j) & 63;
    M = sc(j + 4) & 63;
  } else {
    S = (sc(j + 4) & 15) | ((sc(j - 4) >> 6) << 4);
    M = (sc(j + 4) >> 4) | ((sc(j) >> 6) << 4);
  }
}

constexpr double kTbq3[4] = {0.2450942, 0.7560053, 1.3439093, 2.1519457};
constexpr double kTbq4[8] = {0.1283243, 0.3878412, 0.6564307, 0.9419147,
                             1.2557391, 1.6175243, 2.0685055, 2.7321365};
constexpr double kPolar[8] = {0.131757782, 0.397897103, 0.672392117, 0.962640978,
                              1.279739752, 1.643041510, 2.093562707, 2.754354807};

using Decoder = std::function<double(const Bytes&, int i)>;

double q2_k(const Bytes& b, int i) {
  const int n = i / 128, t = i % 128 / 32, l = i % 32, s = b[size_t(8 * n + 2 * t + l / 16)];
  return half(b, 80) * (s & 15) * ((b[size_t(16 + 32 * n + l)] >> (2 * t)) & 3) - half(b, 82) * (s >> 4);
}

double q3_k(const Bytes& b, int i) {
  const int n = i / 128, t = i % 128 / 32, l = i % 32, k = 8 * n + 2 * t + l / 16;
  const int low = k < 8 ? b[size_t(96 + k)] & 15 : b[size_t(96 + k - 8)] >> 4;
  const int high = (b[size_t(96 + 8 + k % 4)] >> (2 * (k / 4))) & 3;
  const int q = ((b[size_t(32 + 32 * n + l)] >> (2 * t)) & 3) - (((b[size_t(l)] >> (4 * n + t)) & 1) ? 0 : 4);
  return half(b, 108) * ((low | (high << 4)) - 32) * q;
}

double q45_k(const Bytes& b, int i, bool five) {
  const int p = i / 64, l = i % 32, odd = i / 32 % 2;
  int S, M;
  k_scale_min(b, 4, i / 32, S, M);
  const int byte = b[size_t((five ? 48 : 16) + 32 * p + l)];
  int q = odd ? byte >> 4 : byte & 15;
  if (five) q += 16 * ((b[size_t(16 + l)] >> (2 * p + odd)) & 1);
  return half(b, 0) * S * q - half(b, 2) * M;
}

double q6_k(const Bytes& b, int i) {
  const int n = i / 128, t = i % 128 / 32, l = i % 32, byte = b[size_t(64 * n + 32 * (t & 1) + l)];
  const int q =
      ((t < 2 ? byte & 15 : byte >> 4) | (((b[size_t(128 + 32 * n + l)] >> (2 * t)) & 3) << 4)) - 32;
  return half(b, 208) * int8_t(b[size_t(192 + 8 * n + 2 * t + l / 16)]) * q;
}

double iq4_xs(const Bytes& b, int i) {
  const int ib = i / 32, j = i % 32, sh = b[2] | (b[3] << 8);
  const int ls = ((b[size_t(4 + ib / 2)] >> (4 * (ib % 2))) & 15) | (((sh >> (2 * ib)) & 3) << 4);
  return half(b, 0) * (ls - 32) * kLevels[nibble(b, size_t(8 + 16 * ib), j)];
}

const std::map<std::string, Decoder, std::less<>>& decoders() {
  static const std::map<std::string, Decoder, std::less<>> table = {
      {"f32", [](const Bytes& b, int) { return single(b, false); }},
      {"f16", [](const Bytes& b, int) { return half(b, 0); }},
      {"bf16", [](const Bytes& b, int) { return single(b, true); }},
      {"q8_0", [](const Bytes& b, int i) { return half(b, 0) * int8_t(b[size_t(2 + i)]); }},
      {"q4_0", [](const Bytes& b, int i) { return half(b, 0) * (nibble(b, 2, i) - 8); }},
      {"q4_1", [](const Bytes& b, int i) { return half(b, 0) * nibble(b, 4, i) + half(b, 2); }},
      {"q5_0", [](const Bytes& b, int i) { return half(b, 0) * (nibble(b, 6, i) + 16 * bit(b, 2, i) - 16); }},
      {"q5_1",
       [](const Bytes& b, int i) { return half(b, 0) * (nibble(b, 8, i) + 16 * bit(b, 4, i)) + half(b, 2); }},
      {"q2_k", q2_k},
      {"q3_k", q3_k},
      {"q4_k", [](const Bytes& b, int i) { return q45_k(b, i, false); }},
      {"q5_k", [](const Bytes& b, int i) { return q45_k(b, i, true); }},
      {"q6_k", q6_k},
      {"iq4_nl", [](const Bytes& b, int i) { return half(b, 0) * kLevels[nibble(b, 2, i)]; }},
      {"iq4_xs", iq4_xs},
      {"tbq3_0",
       [](const Bytes& b, int i) {
         int code = 0;
         for (int k = 0; k < 3; ++k) code |= bit(b, 2, 3 * i + k) << k;
         return half(b, 0) * (code < 4 ? -kTbq3[3 - code] : kTbq3[code - 4]);
       }},
      {"tbq4_0",
       [](const Bytes& b, int i) {
         const int code = nibble(b, 2, i);
         return half(b, 0) * (code < 8 ? -kTbq4[7 - code] : kTbq4[code - 8]);
       }},
      {"tbq3_tcq",
       [](const Bytes& b, int i) {
         size_t state = 0;
         for (int k = 0; k < 9; ++k) state |= size_t(bit(b, 2, 3 * i + k)) << k;
         return half(b, 0) * double(kTcqLevels[state]) * kTcqUnit;
       }},
      {"q4_polar",
       [](const Bytes& b, int i) {
         const int code = b[size_t(2 + i / 2)] >> (i % 2 * 4) & 15;
         return half(b, 0) / std::sqrt(128.0) * (code < 8 ? -kPolar[7 - code] : kPolar[code - 8]);
       }},
  };
  return table;
}

// Offsets of the f16 scales, which must stay finite in a block of random bytes.
std::vector<size_t> halves(std::string_view name) {
  if (name == "q4_1" || name == "q5_1" || name == "q4_k" || name == "q5_k") return {0, 2};
  if (name == "q2_k") return {80, 82};
  if (name == "q3_k") return {108};
  if (name == "q6_k") return {208};
  return {0};
}

class Layout : public testing::TestWithParam<Format> {};

TEST_P(Layout, RandomBlocksDecodeAsTheTableSays) {
  const Format& format = GetParam();
  if (format.type == DType::qjl1_256) GTEST_SKIP() << "tests/formats/published_test.cpp";
  const auto reference = decoders().find(format.name);
  ASSERT_NE(reference, decoders().end()) << "write the table's formula for a new type here";
  uint64_t state = 7;
  for (int round = 0; round < 200; ++round) {
    Bytes block(format.block_bytes);
    for (uint8_t& byte : block) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      byte = uint8_t(state >> 56);
    }
    const size_t top = format.name == "f32" ? 3 : 1;  // byte with the exponent's upper bits
    for (size_t at : halves(format.name)) block[at + top] &= 0xbb;
    std::vector<float> out(format.block);
    format.decode(reinterpret_cast<const std::byte*>(block.data()), out.data(), format.block);
    for (uint32_t i = 0; i < format.block; ++i) {
      const double expected = reference->second(block, int(i));
      // q4_polar multiplies twice: its norm by 1 / sqrt(128), then the level.
      const double rounding = format.type == DType::q4_polar ? 0x1p-21 : 0x1p-22;
      EXPECT_NEAR(out[i], expected, std::fabs(expected) * rounding + 1e-30)
          << "round " << round << " value " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Layout, testing::ValuesIn(theory::block_formats()),
                         [](const auto& info) { return std::string(info.param.name); });

std::vector<float> decode(std::string_view name, Bytes block) {
  const Format& format = *find(name);
  block.resize(format.block_bytes);
  std::vector<float> out(format.block);
  format.decode(reinterpret_cast<const std::byte*>(block.data()), out.data(), format.block);
  return out;
}

TEST(HandMade, Q8_0) {
  const auto y = decode("q8_0", {0x00, 0x38, 0x7f, 0x81, 0x02});  // d = 0.5; 127, -127, 2
  EXPECT_EQ(y[0], 63.5f);
  EXPECT_EQ(y[1], -63.5f);
  EXPECT_EQ(y[2], 1.0f);
  EXPECT_EQ(y[31], 0.0f);
}

TEST(HandMade, Q4_0) {
  const auto y = decode("q4_0", {0x00, 0xc0, 0xf0, 0x08});  // d = -2; nibbles 0 and 15, 8 and 0
  EXPECT_EQ(y[0], 16.0f);
  EXPECT_EQ(y[16], -14.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[17], 16.0f);
}

TEST(HandMade, Q5_0) {
  // d = 1; qh = 0x00010002: bits 1 and 16; byte 0 = 0x31.
  const auto y = decode("q5_0", {0x00, 0x3c, 0x02, 0x00, 0x01, 0x00, 0x31});
  EXPECT_EQ(y[0], -15.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[16], 3.0f);
  EXPECT_EQ(y[17], -16.0f);
}

TEST(HandMade, Q4_K) {
  Bytes block(144);
  block[1] = 0x3c;             // d = 1
  block[3] = 0x3c;             // dmin = 1
  block[4] = 3;                // S0 = 3
  block[8] = 2;                // M0 = 2
  block[4 + 3] = 0xc0;         // upper bits of S7 = 3
  block[4 + 11] = 0x5a;        // S7 low = 10 -> 58; M7 low = 5
  block[16] = 0x07;            // sub-block 0 value 0 = 7
  block[16 + 96 + 31] = 0xf0;  // sub-block 7 value 31 = 15
  const auto y = decode("q4_k", block);
  EXPECT_EQ(y[0], 19.0f);
  EXPECT_EQ(y[1], -2.0f);
  EXPECT_EQ(y[255], 865.0f);
  EXPECT_EQ(y[254], -5.0f);
}

TEST(HandMade, Q6_K) {
  Bytes block(210);
  block[209] = 0x40;    // d = 2
  block[192] = 0xff;    // S0 = -1
  block[192 + 15] = 3;  // S15 = 3
  block[0] = 0x05;      // value 0 low nibble 5
  block[128] = 0x02;    // value 0 upper bits 2
  block[127] = 0xc0;    // value 255 low nibble 12
  block[191] = 0xc0;    // value 255 upper bits 3
  const auto y = decode("q6_k", block);
  EXPECT_EQ(y[0], -10.0f);    // 2 * -1 * (37 - 32)
  EXPECT_EQ(y[1], 64.0f);     // 2 * -1 * -32
  EXPECT_EQ(y[255], 168.0f);  // 2 * 3 * (60 - 32)
}

}  // namespace
}  // namespace kvasir::formats
