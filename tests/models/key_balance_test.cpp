// Balanced norms leave scores as they are and make rotated keys' errors smaller.
#include "models/key_balance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>

#include "gguf/file.h"
#include "gguf/model_config.h"
#include "models/models.h"

namespace {

using kvasir::models::key_balance;

struct Case {
  std::vector<float> k, q;
  kvasir::graph::RopeSpec rope;
};

Case random_case(int head_dim, int n_rot, unsigned seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<float> size(0, 1);
  Case c;
  for (int i = 0; i < head_dim; ++i) c.k.push_back(size(random)), c.q.push_back(size(random));
  c.rope.n_rot = n_rot;
  return c;
}

// Turns pairs (i, i + n_rot / 2) by angle * (i + 1), those that stand still by nothing.
std::vector<double> turned(std::vector<double> x, const kvasir::graph::RopeSpec& rope, double angle) {
  const size_t half = size_t(rope.n_rot) / 2;
  for (size_t i = 0; i < half; ++i) {
    if (!rope.freq_factors.empty() && rope.freq_factors[i] > 1e15f) continue;
    const double c = std::cos(angle * double(i + 1)), s = std::sin(angle * double(i + 1)), a = x[i], b = x[i + half];
    x[i] = a * c - b * s;
    x[i + half] = a * s + b * c;
  }
  return x;
}

double squares(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return sum;
}

TEST(KeyBalance, ScoresStayAndTheErrorBoundFalls) {
  for (const int n_rot : {64, 32, 0}) {
    Case c = random_case(64, n_rot, 7u + unsigned(n_rot));
    if (n_rot == 64) {  // the upper half of the pairs stands still, as on Gemma 4's global layers
      c.rope.freq_factors.assign(32, 1.0f);
      std::fill(c.rope.freq_factors.begin() + 16, c.rope.freq_factors.end(), 1e30f);
    }
    const std::vector<float> s = key_balance(c.k, std::vector<std::vector<float>>{c.q}, c.rope);
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    double plain_size = 0, balanced_size = 0;
    for (int round = 0; round < 50; ++round) {
      std::vector<double> k(64), q(64), ks(64), qs(64);
      for (size_t i = 0; i < 64; ++i) {
        k[i] = normal(random) * double(c.k[i]);
        q[i] = normal(random) * double(c.q[i]);
        ks[i] = k[i] / double(s[i]);
        qs[i] = q[i] * double(s[i]);
      }
      const auto tk = turned(k, c.rope, 0.3), tq = turned(q, c.rope, 1.1);
      const auto tks = turned(ks, c.rope, 0.3), tqs = turned(qs, c.rope, 1.1);
      double plain = 0, balanced = 0;
      for (size_t i = 0; i < 64; ++i) plain += tk[i] * tq[i], balanced += tks[i] * tqs[i];
      EXPECT_NEAR(balanced, plain, 1e-9 * std::sqrt(squares(tk) * squares(tq)));
      plain_size += squares(tk) * squares(tq);
      balanced_size += squares(tks) * squares(tqs);
    }
    EXPECT_LT(balanced_size, 0.8 * plain_size) << "n_rot " << n_rot;
  }
}

TEST(KeyBalance, OneScaleForATurnedPair) {
  const Case c = random_case(64, 32, 5);
  const std::vector<float> s = key_balance(c.k, std::vector<std::vector<float>>{c.q}, c.rope);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(s[i], s[i + 16]);
  EXPECT_NE(s[40], s[41]);
}

TEST(KeyBalance, EqualNormsNeedNone) {
  const std::vector<float> w(64, 1.5f), q(64, 0.25f);
  kvasir::graph::RopeSpec rope;
  rope.n_rot = 64;
  for (const float s : key_balance(w, std::vector<std::vector<float>>{q, q}, rope)) EXPECT_FLOAT_EQ(s, 1);
}

// A layer whose queries are a thousand times larger must not decide alone for all that share the keys.
TEST(KeyBalance, EveryLayerThatSharesKeysCounts) {
  const Case a = random_case(64, 64, 1), b = random_case(64, 64, 2);
  std::vector<float> large = b.q;
  for (float& x : large) x *= 1000;
  const auto both = key_balance(a.k, std::vector<std::vector<float>>{a.q, b.q}, a.rope), scaled = key_balance(a.k, std::vector<std::vector<float>>{a.q, large}, a.rope);
  for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(both[i], scaled[i], 1e-5 * both[i]);
}

TEST(KeyBalance, HostileNormsAreLeftAlone) {
  kvasir::graph::RopeSpec rope;
  rope.n_rot = 8;
  const std::vector<float> good(8, 1.0f);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> k = good;
    k[1] = k[5] = bad;
    for (const float s : key_balance(k, std::vector<std::vector<float>>{good}, rope)) EXPECT_EQ(s, 1.0f);
    for (const float s : key_balance(good, std::vector<std::vector<float>>{k}, rope)) EXPECT_EQ(s, 1.0f);
    for (const float s : key_balance(good, std::vector<std::vector<float>>{std::vector<float>(8, bad)}, rope)) EXPECT_EQ(s, 1.0f);
  }
  for (const float s : key_balance(std::vector<float>(8, 0.0f), std::vector<std::vector<float>>{good}, rope)) EXPECT_EQ(s, 1.0f);
  for (const float s : key_balance(good, std::vector<std::vector<float>>{std::vector<float>(8, 0.0f)}, rope)) EXPECT_EQ(s, 1.0f);
  std::vector<float> tiny = good;
  tiny[0] = tiny[4] = 1e-30f;
  for (const float s : key_balance(tiny, std::vector<std::vector<float>>{good}, rope)) {
    EXPECT_GE(s, 1 / 16.0f);
    EXPECT_LE(s, 16.0f);
  }
}

// On a file: the product of the two norms, channel by channel, is what it was. Returns how many values moved.
int moved_norms(const std::string& path) {
  const auto file = kvasir::gguf::File::open(path);
  const auto config = kvasir::gguf::read_model_config(*file);
  const auto graph = kvasir::models::build_graph(*file, config);
  const auto values = [&](const std::string& name, bool of_graph) {
    std::span<const std::byte> data = file->require_tensor(name).data;
    for (const auto& w : graph.weights)
      if (of_graph && w.name == name) data = w.data;
    std::vector<float> out(data.size() / sizeof(float));
    std::memcpy(out.data(), data.data(), data.size());
    return out;
  };
  int moved = 0;
  for (int il = 0; il < config.n_layer; ++il) {
    const int donor = config.layers[size_t(il)].kv_donor, owner = donor < 0 ? il : donor;
    const auto name = [](int layer, const char* norm) { return "blk." + std::to_string(layer) + norm; };
    const std::string q = name(il, ".attn_q_norm.weight"), k = name(owner, ".attn_k_norm.weight");
    const auto q0 = values(q, false), q1 = values(q, true), k0 = values(k, false), k1 = values(k, true);
    for (size_t i = 0; i < q0.size(); ++i) {
      EXPECT_NEAR(q1[i] * k1[i], q0[i] * k0[i], 1e-6 * std::abs(q0[i] * k0[i])) << il << " " << i;
      moved += std::abs(q1[i] - q0[i]) > 1e-3f * std::abs(q0[i]);
    }
  }
  return moved;
}

TEST(KeyBalance, EvenNormsOfAModelStayThoseOfTheFile) {
  EXPECT_EQ(moved_norms(KVASIR_SOURCE_DIR "/models/tiny-gemma4-f16.gguf"), 0);
}

TEST(KeyBalance, UnevenNormsOfAModelAreBalanced) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::string folder = cache && *cache ? cache : std::string(std::getenv("HOME") ? std::getenv("HOME") : "") + "/.cache";
  const std::string path = folder + "/kvasir/gemma-3-270m-q4_k_m.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the model is not here; tools/fetch-model gemma3-270m brings it";
  EXPECT_GT(moved_norms(path), 18 * 200);
}

// Gemma-3-270M has channels whose weight is 0 in layers 5, 12, 14 and 17: what the others need does not change.
TEST(KeyBalance, ChannelsWithoutKeysOrQueriesCostNothing) {
  std::vector<float> k(64, 1.0f), q(64, 1.0f);
  kvasir::graph::RopeSpec rope;
  rope.n_rot = 64;
  k[0] = k[32] = 9;
  q[1] = q[33] = 0;
  k[2] = k[34] = 0;
  const std::vector<float> s = key_balance(k, std::vector<std::vector<float>>{q}, rope);
  EXPECT_GT(s[0], 2 * s[3]);
  EXPECT_EQ(s[1], 16.0f);
  EXPECT_EQ(s[2], 1 / 16.0f);
}

// A gain of less than 5 % is none.
TEST(KeyBalance, SmallGainsAreLeft) {
  std::vector<float> k(64, 1.0f), q(64, 1.0f);
  kvasir::graph::RopeSpec rope;
  rope.n_rot = 64;
  k[0] = k[32] = 1.5f;
  for (const float s : key_balance(k, std::vector<std::vector<float>>{q}, rope)) EXPECT_EQ(s, 1.0f);
  k[0] = k[32] = 9;
  EXPECT_GT(key_balance(k, std::vector<std::vector<float>>{q}, rope)[0], 2.0f);
}

}  // namespace
