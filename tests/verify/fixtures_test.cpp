// Public fixtures made from the published generator by code of this file alone, read and scored by
// check_fixture; the published golden line; what is wrong in a file is named.
#include "verify/fixtures.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "verify/reference/half.h"
#include "verify/reference/random.h"

namespace kvasir::verify {
namespace {

using Json = nlohmann::json;
using Vector = std::vector<double>;
using Bytes = std::vector<int>;

void put_half(Bytes& bytes, double v) {
  const int bits = reference::to_f16(v);
  bytes.push_back(bits & 255);
  bytes.push_back(bits >> 8);
}
double stored(double v) { return reference::from_f16(reference::to_f16(v)); }

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Natural order, not scaled.
Vector hadamard(Vector x) {
  for (size_t step = 1; step < x.size(); step *= 2)
    for (size_t i = 0; i < x.size(); ++i)
      if (!(i & step)) {
        const double a = x[i], b = x[i + step];
        x[i] = a + b;
        x[i + step] = a - b;
      }
  return x;
}

Vector flip(Vector x, const std::array<uint8_t, 16>& mask) {
  for (size_t i = 0; i < x.size(); ++i)
    if (mask[i / 8] >> (i % 8) & 1) x[i] = -x[i];
  return x;
}

constexpr std::array<uint8_t, 16> kS1{0x59, 0x03, 0x6a, 0xe4, 0x49, 0x59, 0xf8, 0x42,
                                      0xbb, 0x3b, 0xc6, 0xa4, 0xa9, 0x50, 0xf2, 0x49};
constexpr std::array<uint8_t, 16> kS2{0x90, 0xee, 0xac, 0x16, 0xdc, 0x8f, 0x62, 0x3f,
                                      0x7a, 0x35, 0xa5, 0xb7, 0x62, 0x65, 0xa5, 0xbe};

// Bytes of one key, and what they decode to in the basis the kernel scores in.
struct Key {
  Bytes bytes;
  Vector decoded;
};

int bucket(const Vector& boundaries, double v) {
  int code = 0;
  while (code < int(boundaries.size()) && v >= boundaries[size_t(code)]) ++code;
  return code;
}

Key turbo3(const Vector& x) {
  const Vector levels{-0.190685, -0.117832, -0.065717, -0.021460, 0.021460, 0.065717, 0.117832, 0.190685};
  const Vector boundaries{-0.154259, -0.091775, -0.043589, 0, 0.043589, 0.091775, 0.154259};
  const double norm = std::sqrt(dot(x, x));
  Vector r = x;
  for (double& v : r) v /= norm;
  r = flip(hadamard(flip(r, kS1)), kS2);
  std::vector<int> codes;
  double squares = 0;
  for (const double v : r) {
    codes.push_back(bucket(boundaries, v / std::sqrt(128.0)));
    squares += std::pow(levels[size_t(codes.back())], 2);
  }
  Key key;
  for (size_t b = 0; b < 4; ++b) {
    put_half(key.bytes, norm / std::sqrt(squares));
    for (size_t i = 0; i < 8; ++i) {
      int byte = 0;
      for (size_t j = 0; j < 4; ++j) byte |= (codes[b * 32 + i * 4 + j] & 3) << (2 * j);
      key.bytes.push_back(byte);
    }
    for (size_t i = 0; i < 4; ++i) {
      int byte = 0;
      for (size_t j = 0; j < 8; ++j) byte |= (codes[b * 32 + i * 8 + j] >> 2) << j;
      key.bytes.push_back(byte);
    }
  }
  for (const int code : codes)
    key.decoded.push_back(stored(norm / std::sqrt(squares)) * levels[size_t(code)]);
  return key;
}

Vector rotate32(const Vector& x, size_t first) {
  const std::string signs = "+-++-+--++-+--+--++-+--++-+--+-+";
  Vector r(32);
  for (size_t i = 0; i < 32; ++i) r[i] = signs[i] == '-' ? -x[first + i] : x[first + i];
  r = hadamard(r);
  for (double& v : r) v /= std::sqrt(32.0);
  return r;
}

Key turbo4(const Vector& x) {
  Vector levels{0.1283243, 0.3878412, 0.6564307, 0.9419147, 1.2557391, 1.6175243, 2.0685055, 2.7321365};
  for (size_t i = 0; i < 8; ++i) levels.insert(levels.begin(), -levels[2 * i]);
  Vector boundaries;
  for (size_t i = 0; i < 15; ++i) boundaries.push_back((levels[i] + levels[i + 1]) / 2);
  Key key;
  for (size_t b = 0; b < 128; b += 32) {
    const Vector r = rotate32(x, b);
    const double d = std::sqrt(dot(r, r) / 32);
    std::vector<int> codes;
    for (const double v : r) {
      codes.push_back(bucket(boundaries, v / d));
      key.decoded.push_back(stored(d) * levels[size_t(codes.back())]);
    }
    put_half(key.bytes, d);
    for (size_t i = 0; i < 16; ++i) key.bytes.push_back(codes[i] | codes[i + 16] << 4);
  }
  return key;
}

// 128 x 256 by Marsaglia's method from splitmix64, as the fixtures have it.
const std::vector<float>& projection() {
  static const std::vector<float> values = [] {
    uint64_t state = 0xcafebabe12345678u;
    const auto uniform = [&] {
      return float(reference::splitmix64(state) >> 11 & 0xffffff) / 16777216.0f * 2 - 1;
    };
    std::vector<float> out;
    while (out.size() < 128 * 256) {
      float u, v, r;
      do {
        u = uniform();
        v = uniform();
        r = u * u + v * v;
      } while (r >= 1 || r == 0);
      const float factor = std::sqrt(-2 * std::log(r) / r);
      out.push_back(u * factor);
      out.push_back(v * factor);
    }
    return out;
  }();
  return values;
}

Vector sketch(const Vector& x) {
  Vector out(256);
  for (size_t i = 0; i < 128; ++i)
    for (size_t j = 0; j < 256; ++j) out[j] += x[i] * double(projection()[i * 256 + j]);
  return out;
}

Key qjl(const Vector& x) {
  const Vector s = sketch(x);
  Key key{Bytes(32), {}};
  const double norm = reference::from_bf16(reference::to_bf16(std::sqrt(dot(x, x))));
  for (size_t j = 0; j < 256; ++j) {
    key.bytes[j / 8] |= int(s[j] > 0) << (j % 8);
    key.decoded.push_back((s[j] > 0 ? norm : -norm) * 1.2533141373155003 / 256);
  }
  key.bytes.push_back(reference::to_bf16(norm) & 255);
  key.bytes.push_back(reference::to_bf16(norm) >> 8);
  return key;
}

Key polar(const Vector& x, bool residual) {
  Vector levels{0.131757782, 0.397897103, 0.672392117, 0.962640978,
                1.279739752, 1.643041510, 2.093562707, 2.754354807};
  for (size_t i = 0; i < 8; ++i) levels.insert(levels.begin(), -levels[2 * i]);
  const double norm = std::sqrt(dot(x, x));
  Vector b = x, signs(128);
  for (double& v : b) v /= norm;
  b = hadamard(b);
  uint32_t state = 42;
  for (double& sign : signs) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    sign = state % 2 ? 1 : -1;
  }
  Key key;
  put_half(key.bytes, norm);
  double side = 0;
  std::vector<int> codes;
  Vector boundaries;
  for (size_t i = 0; i < 15; ++i) boundaries.push_back((levels[i] + levels[i + 1]) / 2);
  for (size_t i = 0; i < 128; ++i) {
    codes.push_back(bucket(boundaries, b[i]));
    side += (b[i] - levels[size_t(codes[i])]) * signs[i];
  }
  for (size_t i = 0; i < 64; ++i) key.bytes.push_back(codes[2 * i] | codes[2 * i + 1] << 4);
  key.bytes.push_back(residual && side > 0);
  key.bytes.resize(82);
  Vector row(128);
  for (size_t i = 0; i < 128; ++i)
    row[i] =
        levels[size_t(codes[i])] + (residual ? (side > 0 ? 0.5 : -0.5) / std::sqrt(128.0) * signs[i] : 0);
  key.decoded = hadamard(row);
  for (double& v : key.decoded) v *= stored(norm) / 128;
  return key;
}

Vector draw(reference::FixtureStream& stream, size_t n) {
  Vector out(n);
  for (double& v : out) v = double(stream.next());
  return out;
}

struct Fixture {
  Json json;
  Vector q;
  std::vector<Key> keys;
};

template <typename Encode>
Fixture make(const std::string& kernel, uint64_t skip, const Encode& encode) {
  reference::FixtureStream stream;
  for (uint64_t i = 0; i < skip; ++i) stream.next();
  Fixture fixture;
  fixture.q = draw(stream, 128);
  Json bytes = Json::array();
  for (int i = 0; i < 8; ++i) {
    fixture.keys.push_back(encode(draw(stream, 128)));
    for (const int byte : fixture.keys.back().bytes) bytes.push_back(byte);
  }
  const Vector query = kernel == "qjl" ? sketch(fixture.q) : fixture.q;
  Json scores = Json::array();
  for (const Key& key : fixture.keys) scores.push_back(dot(query, key.decoded));
  fixture.json = {{"kernel", kernel}, {"head_dim", 128}, {"k_blocks", bytes}, {"expected_scores", scores}};
  fixture.json[kernel == "qjl" ? "q_sketch" : "q"] = query;
  return fixture;
}

Fixture turbo_fixture(int bits) {
  Fixture f = bits == 3 ? make("turbo3", 0, turbo3) : make("turbo4", 9 * 128, turbo4);
  f.json.update({{"n_kv", 8}, {"block_bytes", bits == 3 ? 14 : 18}, {"blocks_per_kv", 4}});
  return f;
}

Fixture qjl_fixture() {
  Fixture f = make("qjl", 3 * 9 * 128, qjl);
  f.json.update({{"proj_dim", 256}, {"n_heads", 1}, {"n_kv_heads", 1}, {"n_tokens", 8}, {"block_bytes", 34}});
  return f;
}

Fixture polar_fixture(bool residual) {
  Fixture f =
      make("polar", (residual ? 5 : 4) * 9 * 128, [&](const Vector& x) { return polar(x, residual); });
  f.json.update({{"n_rows", 8}, {"block_bytes", 82}, {"use_qjl", int(residual)}});
  return f;
}

std::string write(const Json& json) {
  const std::string path = testing::TempDir() + "fixture.json";
  std::ofstream(path) << json.dump();
  return path;
}

void expect_all(const Fixture& fixture, const std::string& kernel, int n,
                const formats::TcqTable* table = nullptr) {
  const FixtureResult result = check_fixture(write(fixture.json), table);
  EXPECT_EQ(result.kernel, kernel);
  EXPECT_EQ(result.total, n);
  EXPECT_EQ(result.passed, n) << kernel << " off by " << result.max_diff;
  EXPECT_LT(result.max_relative, 1e-5);
}

TEST(Fixtures, ScoresOfEveryKernel) {
  expect_all(turbo_fixture(3), "turbo3", 8);
  expect_all(turbo_fixture(4), "turbo4", 8);
  expect_all(qjl_fixture(), "qjl", 8);
  expect_all(polar_fixture(false), "polar", 8);
  expect_all(polar_fixture(true), "polar", 8);
}

TEST(Fixtures, PolarWithATransformedQuery) {
  Fixture f = polar_fixture(false);
  f.json.erase("use_qjl");
  f.json["hadamard_inv_scale"] = 0.0078125;
  f.json["hq"] = hadamard(f.q);
  const Fixture with = make("polar", 4 * 9 * 128, [](const Vector& x) { return polar(x, true); });
  f.json["k_blocks_qjl"] = with.json["k_blocks"];
  f.json["expected_scores_qjl"] = with.json["expected_scores"];
  expect_all(f, "polar_preht", 16);
}

// A table of our own: states are three symbols, and the rows are random symbols.
TEST(Fixtures, TrellisWithATable) {
  std::vector<float> levels;
  for (int s = 0; s < 512; ++s) levels.push_back(float((s * 37 % 512) - 255) / 1000);
  const auto table = formats::make_tcq_table(levels, "test");
  uint64_t state = 5;
  Fixture f = make("turbo3_tcq", 2 * 9 * 128, [&](const Vector&) {
    Key key;
    std::vector<int> bits(392);
    for (size_t i = 0; i < 390; ++i) bits[i] = int(reference::splitmix64(state) & 1);
    put_half(key.bytes, 3.5);
    for (size_t i = 0; i < 49; ++i) {
      int byte = 0;
      for (size_t k = 0; k < 8; ++k) byte |= bits[i * 8 + k] << k;
      key.bytes.push_back(byte);
    }
    key.bytes.push_back(0);
    for (size_t t = 0; t < 128; ++t) {
      size_t s = 0;
      for (size_t k = 0; k < 9; ++k) s |= size_t(bits[3 * t + k]) << k;
      key.decoded.push_back(3.5 * double(levels[s]));
    }
    return key;
  });
  f.json.update({{"n_kv", 8}, {"block_bytes", 52}, {"blocks_per_kv", 1}});
  expect_all(f, "turbo3_tcq", 8, table.get());
  EXPECT_LT(check_fixture(write(f.json), &formats::own_tcq_table()).passed, 8);
}

// Query and key drawn in turn; what the published self-test prints.
TEST(Fixtures, PublishedGoldenLine) {
  reference::FixtureStream stream;
  Vector q(128), x(128);
  for (size_t i = 0; i < 128; ++i) {
    q[i] = double(stream.next());
    x[i] = double(stream.next());
  }
  EXPECT_NEAR(dot(q, x), -1.293642, 2e-6);
  EXPECT_NEAR(dot(q, turbo3(x).decoded), -2.501480, 2e-6);
  EXPECT_NEAR(dot(q, turbo4(x).decoded), -23.721790, 5e-6);
  EXPECT_NEAR(dot(sketch(q), qjl(x).decoded), 3.696591, 5e-6);
  EXPECT_NEAR(dot(q, polar(x, false).decoded), -1.994053, 2e-6);
  EXPECT_NEAR(dot(q, polar(x, true).decoded), -1.438744, 2e-6);
}

TEST(Fixtures, OneWrongByteFails) {
  for (Fixture f : {turbo_fixture(3), turbo_fixture(4), qjl_fixture(), polar_fixture(true)}) {
    f.json["k_blocks"][5] = f.json["k_blocks"][5].get<int>() ^ 1;
    const FixtureResult result = check_fixture(write(f.json), nullptr);
    EXPECT_EQ(result.passed, 7) << result.kernel;
  }
}

std::string fault(const Json& json) {
  try {
    check_fixture(write(json), nullptr);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    return error.what();
  }
  return "nothing was refused";
}

TEST(Fixtures, FaultsNameTheField) {
  const Json good = turbo_fixture(4).json;
  const auto expect = [&](const char* field, const Json& value, const char* word) {
    Json bad = good;
    value.is_null() ? void(bad.erase(field)) : void(bad[field] = value);
    const std::string message = fault(bad);
    EXPECT_NE(message.find(std::string("field ") + field), std::string::npos) << message;
    EXPECT_NE(message.find(word), std::string::npos) << message;
  };
  expect("q", nullptr, "missing");
  expect("q", {1, 2, 3}, "has 3 elements; 128 are needed");
  expect("k_blocks", {1}, "576 are needed");
  expect("head_dim", 64, "must be 128");
  expect("n_kv", "eight", "must be an integer");
  expect("kernel", "turbo5", "unknown");
  expect("kernel", "turbo3_tcq", "--tcq-table");
  Json bad = good;
  bad["k_blocks"][9] = 256;
  EXPECT_NE(fault(bad).find("field k_blocks: element 9 is not a byte"), std::string::npos);
  EXPECT_NE(fault(Json::array()).find("not a JSON object"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::verify
