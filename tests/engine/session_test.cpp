// The session's promises: bits that do not depend on batching or threads, reuse equal to a fresh run, shift, copy, limits.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "engine/generate.h"
#include "engine/tiny.h"
#include "formats/format.h"

namespace kvasir::test {
namespace {

using engine::Session;
using engine::Want;
using text::Token;

std::vector<Token> prompt(size_t n) {
  auto ids = reference().array<Token>("long.ids");
  ids.resize(std::min(n, ids.size()));
  return ids;
}

std::vector<float> last_logits(Session& s, int seq, std::span<const Token> ids, size_t step) {
  std::vector<float> out;
  for (size_t i = 0; i < ids.size(); i += step)
    s.append(seq, ids.subspan(i, std::min(step, ids.size() - i)), Want::kLast,
             [&](int, std::span<const float> logits) { out.assign(logits.begin(), logits.end()); });
  return out;
}

std::vector<DType> kv_types() {
  return tiny()->backend().caps().kv_types;
}

TEST(Session, MicroBatchesThreadsAndDecodeGiveTheSameBits) {
  const auto ids = prompt(700);  // beyond the window of 512
  for (const char* file : {"tiny-gemma4-f16.gguf", "tiny-gemma4-q8_0.gguf"}) {
    for (DType type : kv_types()) {
      Session whole(tiny(file, 2), session_options(type, 1024, 512));
      const auto expected = last_logits(whole, 0, ids, ids.size());
      const bool quantised = std::string_view(file).find("q8_0") != std::string_view::npos;
      for (int n_ubatch : quantised ? std::vector<int>{64} : std::vector<int>{100, 7}) {
        Session s(tiny(file, n_ubatch == 7 ? 1 : 2), session_options(type, 1024, n_ubatch));
        EXPECT_EQ(last_logits(s, 0, ids, ids.size()), expected) << formats::require(type).name << " ub " << n_ubatch;
      }
      if (!quantised || (type != DType::f16 && type != DType::q8_0 && type != DType::tbq4_h)) continue;
      Session one(tiny(file, 2), session_options(type, 1024, 512));
      EXPECT_EQ(last_logits(one, 0, ids, 1), expected) << formats::require(type).name << " token by token";
    }
  }
}

TEST(Session, LongContextDecodeEqualsPrefill) {
  const std::string text = read_file(model_path("val.txt"));
  auto ids = tiny()->tokenizer().encode(std::string_view(text).substr(0, 40000), false);
  ids.resize(5200);
  Session whole(tiny("tiny-gemma4-q8_0.gguf"), session_options(DType::f16, 8192, 512));
  const auto expected = last_logits(whole, 0, ids, ids.size());
  Session s(tiny("tiny-gemma4-q8_0.gguf", 1), session_options(DType::f16, 8192, 100));
  last_logits(s, 0, std::span<const Token>(ids).first(5150), 5150);
  EXPECT_EQ(last_logits(s, 0, std::span<const Token>(ids).subspan(5150), 1), expected);
}

TEST(Session, ReusedPrefixEqualsFreshRun) {
  const auto ids = prompt(400);
  Session s(tiny(), session_options());
  last_logits(s, 0, ids, ids.size());
  std::vector<Token> changed(ids.begin(), ids.begin() + 300);
  for (int i = 0; i < 50; ++i) changed.push_back(ids[size_t(i)]);
  EXPECT_EQ(s.reuse_prefix(0, changed), 300);
  const auto reused = last_logits(s, 0, std::span<const Token>(changed).subspan(300), 64);
  Session fresh(tiny(), session_options());
  EXPECT_EQ(reused, last_logits(fresh, 0, changed, 512));
  EXPECT_EQ(s.size(), 350);
}

TEST(Session, WholePromptInCacheStillGivesLogits) {
  const auto ids = prompt(100);
  Session s(tiny(), session_options());
  const auto expected = last_logits(s, 0, ids, 512);
  EXPECT_EQ(s.reuse_prefix(0, ids), 99);
  EXPECT_EQ(last_logits(s, 0, std::span<const Token>(ids).subspan(99), 1), expected);
}

TEST(Session, EvictedWindowForcesAFullReprocessAndSaysSo) {
  const auto ids = prompt(1500);
  Session s(tiny(), session_options(DType::f16, 2048, 64));
  last_logits(s, 0, ids, 512);
  std::string note;
  EXPECT_EQ(s.reuse_prefix(0, std::span<const Token>(ids).first(600), &note), 0);
  EXPECT_NE(note.find("sliding window"), std::string::npos);
  EXPECT_EQ(s.size(), 0);
}

TEST(Session, CopiedSequenceGoesItsOwnWay) {
  const auto ids = prompt(200);
  auto options = session_options();
  options.n_seq = 2;
  Session s(tiny(), options);
  last_logits(s, 0, std::span<const Token>(ids).first(150), 512);  // ends inside a page
  s.copy(0, 1);
  const auto tail = std::span<const Token>(ids).subspan(150);
  std::vector<Token> other(tail.begin(), tail.end());
  std::reverse(other.begin(), other.end());
  const auto branch = last_logits(s, 1, other, 512);
  const auto straight = last_logits(s, 0, tail, 512);
  Session fresh(tiny(), session_options());
  EXPECT_EQ(straight, last_logits(fresh, 0, ids, 512));
  std::vector<Token> all(ids.begin(), ids.begin() + 150);
  all.insert(all.end(), other.begin(), other.end());
  Session fresh2(tiny(), session_options());
  EXPECT_EQ(branch, last_logits(fresh2, 0, all, 512));
}

// With every page of the global layers exact and f16 in the sliding ones, what is encoded is never read.
TEST(Session, ExactPagesEqualAnExactCache) {
  const auto ids = prompt(600);
  Session exact(tiny(), session_options(DType::f16, 1024, 512));
  const auto expected = last_logits(exact, 0, ids, 512);
  for (auto [first, last] : {std::pair{0, 1024}, {1024, 0}, {128, 512}}) {
    auto options = session_options(DType::q8_0, 1024, 512);
    options.kv.k_sliding = options.kv.v_sliding = DType::f16;
    options.kv_exact_first = first;
    options.kv_exact_last = last;
    Session s(tiny(), options);
    EXPECT_EQ(last_logits(s, 0, ids, 512), expected) << first << ' ' << last;
    s.clear(0);
    EXPECT_EQ(last_logits(s, 0, ids, 50), expected) << first << ' ' << last;
  }
}

// What is exact depends on positions only, whatever the batch, with exact pages at both ends too.
TEST(Session, ExactPagesDependOnPositionsOnly) {
  const auto ids = prompt(700);
  for (DType type : {DType::q4_0, DType::tbq3_h}) {
    auto options = session_options(type, 1024, 512);
    options.kv_exact_first = 64;
    options.kv_exact_last = 100;
    Session whole(tiny(), options);
    const auto expected = last_logits(whole, 0, ids, ids.size());
    options.n_ubatch = 33;
    Session s(tiny(), options);
    EXPECT_EQ(last_logits(s, 0, ids, 450), expected) << formats::require(type).name;
  }
}

// A cut inside an encoded page goes back to its start; what follows is then as if it had never been longer.
TEST(Session, TruncationRoundsDownToAnEncodedPage) {
  const auto ids = prompt(300);
  for (DType type : {DType::f16, DType::q8_0, DType::tbq4_h}) {
    const bool pages = formats::require(type).open_page();
    Session s(tiny(), session_options(type, 512, 128));
    last_logits(s, 0, ids, ids.size());
    EXPECT_EQ(s.truncate(0, 290), 290) << "the open page is cut anywhere";
    EXPECT_EQ(s.truncate(0, 200), pages ? 192 : 200);
    const auto rest = std::span<const Token>(ids).subspan(size_t(s.size(0)));
    const auto again = last_logits(s, 0, rest, 7);
    Session fresh(tiny(), session_options(type, 512, 128));
    EXPECT_EQ(again, last_logits(fresh, 0, ids, ids.size())) << formats::require(type).name;
  }
}

TEST(Session, SeveralSequencesInOneStepEqualEachAlone) {
  auto options = session_options();
  options.n_seq = 3;
  Session s(tiny(), options);
  std::vector<std::vector<Token>> texts;
  for (int q = 0; q < 3; ++q) {
    auto ids = prompt(size_t(40 + 70 * q));
    last_logits(s, q, ids, 512);
    texts.push_back(ids);
  }
  const std::vector<Session::SeqToken> step{{0, 600}, {1, 700}, {2, 800}};
  std::vector<std::vector<float>> together(3);
  s.append_each(step, [&](int i, std::span<const float> l) { together[size_t(i)].assign(l.begin(), l.end()); });
  for (int q = 0; q < 3; ++q) {
    Session alone(tiny(), session_options());
    auto ids = texts[size_t(q)];
    ids.push_back(step[size_t(q)].token);
    EXPECT_EQ(together[size_t(q)], last_logits(alone, 0, ids, 512)) << q;
  }
}

TEST(Session, ShiftRenumbersWithoutTouchingKeys) {
  // What the attention op makes of a shift is tested in tests/cpu/shift_test.cpp; here: bookkeeping, twice, inside a window whose
  // prefix was evicted.
  const auto ids = prompt(1200);
  Session s(tiny(), session_options(DType::f16, 2048, 64));
  last_logits(s, 0, ids, 512);
  EXPECT_EQ(s.shift(0, 60, 700), 704);  // 60 rounds up to 64, 700 to 704
  EXPECT_EQ(s.size(), 1200 - 704);
  EXPECT_EQ(s.tokens()[63], ids[63]);
  EXPECT_EQ(s.tokens()[64], ids[768]);
  for (float x : last_logits(s, 0, std::span<const Token>(ids).last(100), 512)) ASSERT_TRUE(std::isfinite(x));
  EXPECT_EQ(s.shift(0, 0, 64), 64);  // the prefix of the first shift stays
  EXPECT_EQ(s.tokens()[63], ids[63]);
  for (float x : last_logits(s, 0, std::span<const Token>(ids).first(3), 1)) ASSERT_TRUE(std::isfinite(x));
  EXPECT_EQ(s.truncate(0, 100), 0) << "a shifted text is no prefix of anything";
  EXPECT_EQ(s.size(), 0);
  Session fresh(tiny(), session_options(DType::f16, 2048, 64));
  EXPECT_EQ(last_logits(s, 0, ids, 512), last_logits(fresh, 0, ids, 512));
}

TEST(Session, ShiftThatLeavesNothingIsRefused) {
  Session s(tiny(), session_options());
  last_logits(s, 0, prompt(100), 512);
  EXPECT_THROW(s.shift(0, 64, 64), Error);
  EXPECT_EQ(s.size(), 100);
}

TEST(Session, GenerationGoesOnPastTheContextWithShift) {
  Session s(tiny(), session_options(DType::q8_0, 256, 64));
  engine::GenerateOptions options;
  options.ignore_end = true;
  options.context_shift = true;
  options.n_predict = 400;
  const auto result = engine::generate(s, 0, prompt(100), options, [](std::string_view) { return true; });
  EXPECT_EQ(result.reason, engine::StopReason::kLimit);
  EXPECT_EQ(result.n_generated, 400);
}

TEST(Session, GreedyAppendsWhatWasAcceptedAndNothingElse) {
  const auto ids = prompt(50);
  Session s(tiny(), session_options()), steps(tiny(), session_options());
  last_logits(s, 0, ids, 512);
  last_logits(steps, 0, ids, 512);
  std::vector<Token> chosen, expected;
  EXPECT_EQ(s.append_greedy(0, ids[0], 30, [&](Token t) { return chosen.push_back(t), true; }), 30);
  Token next = ids[0];
  for (int i = 0; i < 30; ++i) {
    steps.append(0, std::span(&next, 1), Want::kLast, [&](int, std::span<const float> logits) {
      next = Token(std::ranges::max_element(logits) - logits.begin());
    });
    expected.push_back(next);
  }
  EXPECT_EQ(chosen, expected);
  EXPECT_EQ(s.size(), 80);
  EXPECT_TRUE(std::ranges::equal(s.tokens(0), steps.tokens(0)));
  int calls = 0;
  EXPECT_EQ(s.append_greedy(0, chosen.back(), 30, [&](Token) { return ++calls < 5; }), 5);
  EXPECT_EQ(s.size(), 85);
  EXPECT_THROW(s.append_greedy(0, -1, 1, [](Token) { return true; }), Error);
  EXPECT_THROW(s.append_greedy(0, ids[0], 100000, [](Token) { return true; }), Error);
  EXPECT_EQ(s.size(), 85);
}

TEST(Session, ChosenTokensAreTheSamplers) {
  const auto ids = prompt(50);
  Session s(tiny(), session_options()), steps(tiny(), session_options());
  last_logits(s, 0, ids, 512);
  last_logits(steps, 0, ids, 512);
  engine::SamplerOptions options;
  options.temperature = 0.9f;
  options.seed = 4;
  engine::Sampler ours(options), theirs(options);
  std::vector<Token> chosen, expected;
  EXPECT_EQ(s.append_chosen(0, ids[0], 40, ours, [&](Token t) { return chosen.push_back(t), true; }), 40);
  Token next = ids[0];
  for (int i = 0; i < 40; ++i) {
    steps.append(0, std::span(&next, 1), Want::kLast,
                 [&](int, std::span<const float> logits) { next = theirs.sample(logits); });
    expected.push_back(next);
  }
  EXPECT_EQ(chosen, expected);
  options.repeat_penalty = 1.1f;
  engine::Sampler penalised(options);
  EXPECT_THROW(s.append_chosen(0, ids[0], 1, penalised, [](Token) { return true; }), Error);
}

TEST(Session, ContextFullIsAClearRefusalAndLosesNothing) {
  const auto ids = prompt(120);
  Session s(tiny(), session_options(DType::f16, 128));
  last_logits(s, 0, ids, 512);
  try {
    last_logits(s, 0, std::span<const Token>(ids).first(20), 512);
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kRefused);
    EXPECT_NE(std::string(e.what()).find("128"), std::string::npos) << e.what();
  }
  EXPECT_EQ(s.size(), 120);
  engine::GenerateOptions options;
  options.ignore_end = true;
  const auto result = engine::generate(s, 0, ids, options, [](std::string_view) { return true; });
  EXPECT_EQ(result.reason, engine::StopReason::kContextFull);
  EXPECT_EQ(s.size(), 128);
}

TEST(Session, KvBytesEqualTheFormula) {
  // Owned layers of tiny-gemma4: four sliding (256), one global (512), f16: bytes a page = 64 * 2 * head_dim * 2.
  Session s(tiny(), session_options(DType::f16, 2048, 512));
  const uint64_t ring = (512 - 1 + 512 + 63) / 64 + 1;
  EXPECT_EQ(s.kv_bytes(), 4 * ring * 64 * 2 * 256 * 2 + (2048 / 64) * 64 * 2 * 512 * 2);
}

TEST(Session, LoadLinesNameHeadSizeAndFlashAttention) {
  Session s(tiny(), session_options());
  const auto lines = s.load_lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("head size 512"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("head size 256"), std::string::npos) << lines[1];
  for (const auto& line : lines) EXPECT_NE(line.find("flash attention engaged"), std::string::npos) << line;
}

TEST(Session, TheMicroBatchSuitsTheBackendWhenNobodySays) {
  auto options = session_options(DType::f16, 2048, 0);
  EXPECT_EQ(Session(tiny(), options).options().n_ubatch, 512);
  options.n_ctx = 100;
  EXPECT_EQ(Session(tiny(), options).options().n_ubatch, 100);
  options.n_batch = 30;
  EXPECT_EQ(Session(tiny(), options).options().n_ubatch, 30);
}

TEST(Session, BadOptionsNameTheFlag) {
  auto options = session_options();
  options.n_ubatch = -1;
  EXPECT_THROW(Session(tiny(), options), Error);
  options = session_options();
  options.kv.k = DType::q4_k;
  try {
    Session s(tiny(), options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kRefused) << e.what();
  }
}

// A type with a codec but no attention: refused by name, before any page is allocated.
TEST(Session, KvTypesWithoutAttentionAreRefusedByName) {
  const auto runs = kv_types();
  for (const formats::Format& format : formats::all()) {
    if (!format.has_role(formats::kKeys) || std::count(runs.begin(), runs.end(), format.type)) continue;
    for (const bool keys : {true, false})
      for (const bool sliding : {true, false}) {
        auto options = session_options();
        options.n_ctx = 1 << 30;  // would not fit: the type is checked first
        if (sliding)
          (keys ? options.kv.k_sliding : options.kv.v_sliding) = format.type;
        else
          (keys ? options.kv.k : options.kv.v) = format.type;
        try {
          Session s(tiny(), options);
          ADD_FAILURE() << format.name << " was taken";
        } catch (const Error& e) {
          const std::string text = e.what();
          EXPECT_EQ(e.code(), ErrorCode::kRefused) << text;
          for (const char* word : {"required", "supported", "missing", "f16 ", keys ? "keys" : "values"})
            EXPECT_NE(text.find(word), std::string::npos) << text;
          if (format.has_role(keys ? formats::kKeys : formats::kValues)) {
            EXPECT_NE(text.find("attention over " + std::string(format.name)), std::string::npos) << text;
          }
        }
      }
  }
}

}  // namespace
}  // namespace kvasir::test
