// Sampling is deterministic, honours each knob, and refuses values that make no sense by the flag's name.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <cmath>
#include <map>

#include "base/error.h"

namespace kvasir::engine {
namespace {

using text::Token;

std::map<Token, int> draw(SamplerOptions options, const std::vector<float>& logits, int n = 20000) {
  Sampler sampler(options);
  std::map<Token, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sampler.sample(logits)];
  return counts;
}

SamplerOptions plain(float temperature) {
  SamplerOptions o;
  o.temperature = temperature;
  o.top_k = 0;
  o.top_p = 1;
  return o;
}

TEST(Sampler, GreedyTakesTheLowerIdOfEquals) {
  Sampler sampler(plain(0));
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 2}), 1);
}

TEST(Sampler, SameSeedSameTokensOtherSeedOthers) {
  const std::vector<float> logits{0.5f, 0.4f, 0.3f, 0.2f, 0.1f};
  const auto run = [&](uint64_t seed) {
    SamplerOptions o = plain(1);
    o.seed = seed;
    Sampler sampler(o);
    std::vector<Token> tokens;
    for (int i = 0; i < 64; ++i) tokens.push_back(sampler.sample(logits));
    return tokens;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  auto counts = draw(plain(1), logits);
  EXPECT_NEAR(counts[0] / 20000.0, 0.5, 0.015);
  EXPECT_NEAR(counts[1] / 20000.0, 0.3, 0.015);
  EXPECT_NEAR(counts[2] / 20000.0, 0.2, 0.015);
  auto sharp = draw(plain(0.5f), logits);  // p^2: 25 : 9 : 4
  EXPECT_NEAR(sharp[0] / 20000.0, 25.0 / 38, 0.015);
}

TEST(Sampler, TopKTopPAndMinPCutTheTail) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  SamplerOptions o = plain(1);
  o.top_k = 2;
  EXPECT_EQ(draw(o, logits).size(), 2u);
  o = plain(1);
  o.top_p = 0.79f;  // 0.5 + 0.3 reaches it
  EXPECT_EQ(draw(o, logits).size(), 2u);
  o = plain(1);
  o.min_p = 0.2f;  // of the best: 0.1
  EXPECT_EQ(draw(o, logits).size(), 3u);
}

TEST(Sampler, RepeatPenaltyLowersSeenTokensOnly) {
  SamplerOptions o = plain(0);
  o.repeat_penalty = 2;
  o.repeat_last_n = 1;
  Sampler sampler(o);
  const std::vector<float> logits{3, 2, -1};
  EXPECT_EQ(sampler.sample(logits), 0);
  sampler.accept(0);
  EXPECT_EQ(sampler.sample(logits), 1);
  sampler.accept(2);  // pushes 0 out
  EXPECT_EQ(sampler.sample(logits), 0);
}

TEST(Sampler, CandidatesChooseWhatAllLogitsChoose) {
  uint64_t state = 5;
  std::vector<float> logits(30001);
  for (float& x : logits) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    x = float(int64_t(state >> 40) % 60) / 4;  // many ties
  }
  std::vector<text::Token> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = text::Token(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](text::Token a, text::Token b) { return logits[size_t(a)] > logits[size_t(b)]; });
  for (float temperature : {0.0f, 0.7f, 2.0f})
    for (int top_k : {1, 40, 128})
      for (float top_p : {0.3f, 1.0f})
        for (float min_p : {0.0f, 0.4f}) {
          SamplerOptions o;
          o.temperature = temperature;
          o.top_k = top_k;
          o.top_p = top_p;
          o.min_p = min_p;
          o.seed = 3;
          Sampler all(o), few(o);
          ASSERT_EQ(few.candidates(), temperature == 0 ? 1 : top_k);
          std::vector<backends::Candidate> best;
          for (int i = 0; i < few.candidates(); ++i)
            best.push_back({logits[size_t(order[size_t(i)])], order[size_t(i)]});
          for (int i = 0; i < 20; ++i) ASSERT_EQ(few.sample(best), all.sample(logits));
        }
  SamplerOptions o;
  o.temperature = 1;
  o.top_k = 0;
  EXPECT_EQ(Sampler(o).candidates(), 0);
  o.top_k = 129;
  EXPECT_EQ(Sampler(o).candidates(), 0);
  o.top_k = 40;
  o.repeat_penalty = 1.1f;
  EXPECT_EQ(Sampler(o).candidates(), 0);
}

TEST(Sampler, LogitsThatAreNoNumbersGiveSomeToken) {
  std::vector<float> logits(1000, std::numeric_limits<float>::quiet_NaN());
  for (float temperature : {0.0f, 1.0f}) {
    SamplerOptions o;
    o.temperature = temperature;
    EXPECT_EQ(Sampler(o).sample(logits), 0);
  }
  logits[700] = 1;
  for (float temperature : {0.0f, 1.0f}) {
    SamplerOptions o;
    o.temperature = temperature;
    EXPECT_EQ(Sampler(o).sample(logits), 700);
  }
}

// The nucleus of a whole vocabulary, found without sorting it all, is that of the sorted one.
TEST(Sampler, AllOfAVocabularyHasTheSameNucleus) {
  uint64_t state = 8;
  std::vector<float> logits(5000);
  for (float& x : logits) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    x = float(int64_t(state >> 40) % 400) / 100;  // flat: thousands are kept
  }
  std::vector<std::pair<float, Token>> order;
  for (size_t i = 0; i < logits.size(); ++i) order.push_back({-logits[i], Token(i)});
  std::sort(order.begin(), order.end());
  const auto weight = [&](double temperature) {
    return [&, temperature](int i) {
      return graph::choice_weight(-order[size_t(i)].first, -order[0].first, temperature);
    };
  };
  double total = 0;
  for (float x : logits) total += graph::choice_weight(x, -order[0].first, 1);
  for (float top_p : {0.01f, 0.3f, 0.97f})
    for (float min_p : {0.0f, 0.5f}) {
      SamplerOptions o = plain(1.3f);
      o.top_p = top_p;
      o.min_p = min_p;
      Sampler sampler(o);
      for (int i = 0; i < 50; ++i) {
        const graph::Choice choice = sampler.choice();
        const int kept = graph::nucleus_size(choice, int(order.size()), total, weight(1));
        const int taken = graph::draw_one(choice, kept, weight(double(o.temperature)));
        ASSERT_EQ(sampler.sample(logits), order[size_t(taken)].second) << top_p << " " << min_p << " " << kept;
      }
    }
}

TEST(Sampler, EveryTokenMayComeWhereNothingIsCut) {
  const std::vector<float> logits{std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  auto counts = draw(plain(1), logits);
  EXPECT_NEAR(counts[1] / 20000.0, 0.5, 0.015);
  EXPECT_NEAR(counts[2] / 20000.0, 0.3, 0.015);
}

// What a device is told about the draws to come is what sample() does when they come.
TEST(Sampler, ChoicesAreTheDrawsToCome) {
  std::vector<backends::Candidate> best;
  for (int i = 0; i < 40; ++i) best.push_back({3.0f - 0.1f * float(i), 1000 + i});
  const auto weights = [&](double temperature) {
    std::vector<double> w;
    for (const backends::Candidate& c : best) w.push_back(graph::choice_weight(c.logit, best[0].logit, temperature));
    return w;
  };
  const auto of = [](const std::vector<double>& w) { return [&w](int i) { return w[size_t(i)]; }; };
  for (float top_p : {0.5f, 1.0f})
    for (float min_p : {0.0f, 0.2f}) {
      SamplerOptions o;
      o.temperature = 0.7f;
      o.top_k = 40;
      o.top_p = top_p;
      o.min_p = min_p;
      o.seed = 9;
      Sampler drawn(o), told(o);
      const std::vector<double> own = weights(1), tempered = weights(double(0.7f));
      for (int i = 0; i < 200; ++i) {
        if (i % 3 == 0) {  // the one after the next two
          const uint64_t later = told.choice(2).random;
          Sampler copy = told;
          copy.advance(), copy.advance();
          ASSERT_EQ(copy.choice().random, later);
        }
        const graph::Choice choice = told.choice();
        ASSERT_EQ(choice.n_best, 40);
        const int taken = graph::choose_candidate(choice, 40, of(own), of(tempered));
        ASSERT_EQ(best[size_t(taken)].token, drawn.sample(best)) << i;
        told.advance();
      }
    }
  EXPECT_EQ(Sampler(plain(0)).choice().n_best, 1);
}

TEST(Sampler, ExpOfChoicesIsExp) {
  for (double x = -699.99; x <= 0; x += 0.00713) {
    const double exact = std::exp(x);
    ASSERT_NEAR(graph::choice_exp(x), exact, 1e-15 * exact) << x;
  }
  EXPECT_EQ(graph::choice_exp(0), 1);
  EXPECT_EQ(graph::choice_exp(-701), 0);
  EXPECT_EQ(graph::choice_exp(-HUGE_VAL), 0);
  EXPECT_EQ(graph::choice_exp(NAN), 0);
}

TEST(Sampler, NonsenseIsRefusedByFlag) {
  const auto message = [](SamplerOptions o) -> std::string {
    try {
      Sampler sampler(o);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      return e.what();
    }
    return "accepted";
  };
  SamplerOptions o;
  o.temperature = -1;
  EXPECT_NE(message(o).find("--temp"), std::string::npos);
  o = {};
  o.top_p = 0;
  EXPECT_NE(message(o).find("--top-p"), std::string::npos);
  o = {};
  o.min_p = 1.5f;
  EXPECT_NE(message(o).find("--min-p"), std::string::npos);
  o = {};
  o.repeat_penalty = 0;
  EXPECT_NE(message(o).find("--repeat-penalty"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::engine
