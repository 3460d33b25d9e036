// log_probability against double precision, and the window rules of perplexity().
#include "engine/perplexity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "engine/tiny.h"

namespace kvasir::test {
namespace {

using text::Token;

double exact(const std::vector<float>& logits, size_t id) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(double(x) - top);
  return double(logits[id]) - top - std::log(sum);
}

TEST(LogProbability, EqualsDoublePrecision) {
  std::mt19937 random(7);
  for (size_t n : {1u, 2u, 7u, 8u, 255u, 257u, 4096u, 262144u}) {
    for (float spread : {0.0f, 1.0f, 8.0f, 60.0f}) {
      std::normal_distribution<float> normal(0, spread > 0 ? spread : 1e-6f);
      std::vector<float> logits(n);
      for (float& x : logits) x = normal(random);
      const size_t id = n / 3;
      EXPECT_NEAR(engine::log_probability(logits, Token(id)), exact(logits, id), 1e-6) << n << " " << spread;
    }
  }
}

TEST(Perplexity, CountsHalfAWindowAndDropsTheRemainder) {
  auto model = tiny();
  const auto ids = reference().array<Token>("long.ids");  // 1500 tokens
  engine::Session s(model, session_options());
  engine::PerplexityOptions options;
  options.n_ctx = 512;
  const auto result = engine::perplexity(s, ids, options);
  EXPECT_EQ(result.n_chunks, 2);
  EXPECT_EQ(result.n_tokens, 2 * (512 / 2 - 1));
  options.score_all = true;
  EXPECT_EQ(engine::perplexity(s, ids, options).n_tokens, 2 * 511);
}

TEST(Perplexity, RefusesATextShorterThanAWindow) {
  engine::Session s(tiny(), session_options());
  const auto ids = reference().array<Token>("short.ids");
  engine::PerplexityOptions options;
  options.n_ctx = 512;
  try {
    engine::perplexity(s, ids, options);
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(e.what()).find("5 tokens"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace kvasir::test
