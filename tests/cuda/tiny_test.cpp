// tiny-gemma4 on CUDA against its reference outputs and against the CPU.
#include "engine/tiny.h"

#include <algorithm>
#include <functional>

#include "cuda/fixture.h"
#include "engine/generate.h"
#include "engine/perplexity.h"
#include "engine/state_io.h"

namespace kvasir::test {
namespace {

using engine::Session;
using engine::Want;
using text::Token;

std::shared_ptr<engine::Model> load(const std::string& file, const std::string& backend) {
  engine::LoadOptions options;
  options.path = model_path(file);
  options.backend = backend;
  return engine::Model::load(options);
}

// Types that hold keys and values.
std::vector<DType> both_roles() {
  std::vector<DType> types;
  for (const formats::Format& format : formats::all())
    if (format.has_role(formats::kKeys) && format.has_role(formats::kValues)) types.push_back(format.type);
  return types;
}

std::vector<std::byte> state_of(const Session& s) {
  std::vector<std::byte> state;
  s.save_state(0,
               [&](std::span<const std::byte> part) { state.insert(state.end(), part.begin(), part.end()); });
  return state;
}

std::vector<float> next_logits(Session& s, Token token) {
  std::vector<float> out;
  s.append(0, std::span(&token, 1), Want::kLast,
           [&](int, std::span<const float> logits) { out.assign(logits.begin(), logits.end()); });
  return out;
}

std::vector<std::string> files() { return {"tiny-gemma4-f16.gguf", "tiny-gemma4-q8_0.gguf"}; }

TEST(CudaTiny, LastLogitsOfEachPrompt) {
  KVASIR_NEEDS_CUDA();
  for (const std::string& file : files()) {
    const auto model = load(file, "cuda");
    for (const char* prompt : {"short", "medium", "long"}) {
      const auto ids = reference().array<Token>(std::string(prompt) + ".ids");
      const auto expected = reference().array<float>(std::string(prompt) + ".last_logits");
      for (bool flash : {true, false}) {
        auto options = session_options(DType::f16);
        options.flash_attention = flash;
        Session s(model, options);
        s.append(0, ids, Want::kLast, [&](int, std::span<const float> logits) {
          double worst = 0;
          for (size_t i = 0; i < logits.size(); ++i)
            worst = std::max(worst, std::fabs(double(logits[i]) - expected[i]));
          EXPECT_LE(worst, file.find("f16") != file.npos ? 0.05 : 1.0)
              << file << " " << prompt << (flash ? " flash" : " plain");
          std::printf("%s %s %s: largest logit difference %.4f\n", file.c_str(), prompt,
                      flash ? "flash" : "plain", worst);
        });
      }
    }
  }
}

TEST(CudaTiny, GreedyTextUpToANearTie) {
  KVASIR_NEEDS_CUDA();
  for (const std::string& file : files()) {
    const auto model = load(file, "cuda");
    for (const char* prompt : {"short", "medium", "long"}) {
      const auto ids = reference().array<Token>(std::string(prompt) + ".ids");
      const auto expected = reference().array<Token>(std::string(prompt) + ".greedy_ids");
      const auto margins = reference().array<float>(std::string(prompt) + ".greedy_margins");
      Session s(model, session_options(DType::f16));
      engine::GenerateOptions options;
      options.n_predict = 64;
      options.ignore_end = true;
      const auto result = engine::generate(s, 0, ids, options, [](std::string_view) { return true; });
      ASSERT_EQ(result.tokens.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        if (margins[i] < 0.05f) break;
        EXPECT_EQ(result.tokens[i], expected[i])
            << file << " " << prompt << " token " << i << " margin " << margins[i];
        if (result.tokens[i] != expected[i]) break;
      }
    }
  }
}

TEST(CudaTiny, PerplexityIsTheCpus) {
  KVASIR_NEEDS_CUDA();
  const std::string text = read_file(model_path("val.txt"));
  for (const std::string& file : files()) {
    double ppl[2];
    for (int b = 0; b < 2; ++b) {
      const auto model = load(file, b ? "cuda" : "cpu");
      std::vector<Token> tokens = model->tokenizer().encode(text, false);
      tokens.insert(tokens.begin(), model->tokenizer().bos());
      Session s(model, session_options(DType::f16));
      engine::PerplexityOptions options;
      options.n_ctx = 2048;
      options.max_chunks = 4;
      ppl[b] = engine::perplexity(s, tokens, options).ppl;
    }
    std::printf("%s: perplexity cpu %.5f cuda %.5f\n", file.c_str(), ppl[0], ppl[1]);
    EXPECT_NEAR(ppl[1] / ppl[0], 1.0, 1e-3) << file;
  }
}

TEST(CudaTiny, MicroBatchesAgree) {
  KVASIR_NEEDS_CUDA();
  const auto model = load("tiny-gemma4-f16.gguf", "cuda");
  auto ids = reference().array<Token>("perplexity.ids");
  ids.resize(2048);  // the first window
  for (DType type : {DType::f16, DType::q8_0}) {
    std::vector<float> first;
    for (int n_ubatch : {2048, 512, 64, 16, 1}) {
      Session s(model, session_options(type, 2048, n_ubatch));
      s.append(0, ids, Want::kLast, [&](int, std::span<const float> logits) {
        if (first.empty()) first.assign(logits.begin(), logits.end());
        double worst = 0;
        for (size_t i = 0; i < logits.size(); ++i)
          worst = std::max(worst, std::fabs(double(logits[i]) - double(first[i])));
        EXPECT_LE(worst, 0.1) << formats::require(type).name << " micro-batch " << n_ubatch;
      });
    }
  }
}

TEST(CudaTiny, CandidatesAreTheBestLogits) {
  KVASIR_NEEDS_CUDA();
  const auto model = load("tiny-gemma4-q8_0.gguf", "cuda");
  const auto ids = reference().array<Token>("medium.ids");
  for (int n : {1, 7, 64, 128}) {
    Session s(model, session_options(DType::f16)), other(model, session_options(DType::f16));
    std::vector<float> logits;
    std::vector<backends::Candidate> best;
    s.append(0, ids, Want::kLast, [&](int, std::span<const float> l) { logits.assign(l.begin(), l.end()); });
    EXPECT_TRUE(other.append_best(
        0, ids, n, [&](std::span<const backends::Candidate> b) { best.assign(b.begin(), b.end()); },
        [](int, std::span<const float>) { FAIL() << "the device did not choose"; }));
    std::vector<Token> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = Token(i);
    std::ranges::stable_sort(order, std::greater(), [&](Token t) { return logits[size_t(t)]; });
    ASSERT_EQ(best.size(), size_t(n));
    for (int i = 0; i < n; ++i) {
      EXPECT_EQ(best[size_t(i)].token, order[size_t(i)]) << i << " of " << n;
      EXPECT_EQ(best[size_t(i)].logit, logits[size_t(order[size_t(i)])]) << i << " of " << n;
    }
  }
}

// Steps that start before their token is known, over page boundaries and past the window, and one that is
// taken back: the same tokens and the same cache as one step after the other.
TEST(CudaTiny, StepsAheadEqualStepsOneByOne) {
  KVASIR_NEEDS_CUDA();
  const auto model = load("tiny-gemma4-q8_0.gguf", "cuda");
  auto ids = reference().array<Token>("long.ids");
  ids.resize(500);
  for (const float temperature : {0.0f, 0.9f})
    for (const DType type : {DType::f16, DType::q8_0, DType::tbq4_h, DType::tbq3_ht}) {
      const std::string name = fmt::format("{}, temperature {}", formats::require(type).name, temperature);
      engine::SamplerOptions sampling;
      sampling.temperature = temperature;
      sampling.seed = 5;
      engine::Sampler ours(sampling), theirs(sampling);
      Session ahead(model, session_options(type)), steps(model, session_options(type));
      for (Session* s : {&ahead, &steps}) s->append(0, ids, Want::kNone, nullptr);
      std::vector<Token> chosen, expected;
      for (const int n : {1, 2, 3, 90, 130, 64}) {  // each ends with a step that was under way and is taken back
        const Token first = chosen.empty() ? ids[0] : chosen.back();
        int calls = 0;
        ahead.append_chosen(0, first, 200, ours, [&](Token t) { return chosen.push_back(t), ++calls < n; });
        Token next = first;
        for (int i = 0; i < n; ++i) {
          steps.append_best(
              0, std::span(&next, 1), theirs.candidates(),
              [&](std::span<const backends::Candidate> best) { next = theirs.sample(best); },
              [](int, std::span<const float>) { FAIL() << "the device did not choose"; });
          expected.push_back(next);
        }
        ASSERT_EQ(chosen, expected) << name << " after " << n;
        ASSERT_EQ(ahead.size(), steps.size()) << name << " after " << n;
        ASSERT_EQ(state_of(ahead), state_of(steps)) << name << " after " << n;
      }
      EXPECT_EQ(next_logits(ahead, chosen.back()), next_logits(steps, chosen.back())) << name;
    }
}

TEST(CudaTiny, AStepAllocatesNothingAndBringsFewBytes) {
  KVASIR_NEEDS_CUDA();
  const auto model = load("tiny-gemma4-q8_0.gguf", "cuda");
  const auto ids = reference().array<Token>("medium.ids");
  for (const float temperature : {0.0f, 1.0f})
    for (const DType type : {DType::f16, DType::tbq4_h}) {
      engine::SamplerOptions sampling;
      sampling.temperature = temperature;
      engine::Sampler sampler(sampling);
      Session s(model, session_options(type));
      s.append(0, ids, Want::kNone, nullptr);
      const auto on = [](Token) { return true; };
      s.append_chosen(0, ids[0], 600, sampler, on);  // every kind of step has been captured
      const backends::Counters before = s.counters();
      s.append_chosen(0, ids[0], 128, sampler, on);
      const backends::Counters after = s.counters();
      EXPECT_EQ(after.steps - before.steps, 128u);
      EXPECT_EQ(after.allocations, before.allocations);
      EXPECT_LE(after.uploaded_bytes - before.uploaded_bytes, 128u * 64) << formats::require(type).name;
    }
}

TEST(CudaTiny, SampledTextIsTheHostsForItsLogits) {
  KVASIR_NEEDS_CUDA();
  const auto model = load("tiny-gemma4-q8_0.gguf", "cuda");
  const auto ids = reference().array<Token>("short.ids");
  for (float temperature : {0.0f, 0.8f, 1.5f}) {
    engine::SamplerOptions sampling;
    sampling.temperature = temperature;
    sampling.top_k = 40;
    sampling.min_p = 0.02f;
    sampling.seed = 11;
    engine::GenerateOptions options;
    options.sampler = sampling;
    options.n_predict = 48;
    options.ignore_end = true;
    Session s(model, session_options(DType::f16));
    const auto text = engine::generate(s, 0, ids, options, [](std::string_view) { return true; }).tokens;
    Session host(model, session_options(DType::f16));
    engine::Sampler sampler(sampling);
    Token next = 0;
    const auto pick = [&](int, std::span<const float> logits) { next = sampler.sample(logits); };
    host.append(0, ids, Want::kLast, pick);
    for (Token token : text) {
      ASSERT_EQ(token, next) << "temperature " << temperature;
      host.append(0, std::span(&token, 1), Want::kLast, pick);
    }
  }
}

// The captured launches of one sampler are not those of the next.
TEST(CudaTiny, SamplersFollowEachOtherInOneSession) {
  KVASIR_NEEDS_CUDA();
  const auto model = load("tiny-gemma4-q8_0.gguf", "cuda");
  const auto ids = reference().array<Token>("short.ids");
  Session one(model, session_options(DType::f16)), other(model, session_options(DType::f16));
  for (Session* s : {&one, &other}) s->append(0, ids, Want::kNone, nullptr);
  std::vector<Token> chosen, expected;
  uint64_t seed = 0;
  for (const auto& [temperature, top_k, top_p] :
       std::initializer_list<std::tuple<float, int, float>>{{1.0f, 40, 0.9f}, {0, 64, 1}, {1.5f, 40, 0.9f}, {1.5f, 8, 1}, {1.0f, 128, 0.5f}}) {
    engine::SamplerOptions sampling;
    sampling.temperature = temperature;
    sampling.top_k = top_k;
    sampling.top_p = top_p;
    sampling.seed = ++seed;
    engine::Sampler ours(sampling), theirs(sampling);
    Token next = chosen.empty() ? ids[0] : chosen.back();
    one.append_chosen(0, next, 20, ours, [&](Token t) { return chosen.push_back(t), true; });
    for (int i = 0; i < 20; ++i) {
      other.append(0, std::span(&next, 1), Want::kLast,
                   [&](int, std::span<const float> logits) { next = theirs.sample(logits); });
      expected.push_back(next);
    }
    ASSERT_EQ(chosen, expected) << "temperature " << temperature << ", top-k " << top_k << ", top-p " << top_p;
  }
}

TEST(CudaTiny, SavedStateGoesOnWithTheSameBits) {
  KVASIR_NEEDS_CUDA();
  const auto model = load("tiny-gemma4-q8_0.gguf", "cuda");
  auto ids = reference().array<Token>("long.ids");
  ids.resize(150);
  for (const DType type : both_roles()) {
    Session s(model, session_options(type)), loaded(model, session_options(type));
    s.append(0, ids, Want::kNone, nullptr);
    std::vector<std::byte> state;
    s.save_state(
        0, [&](std::span<const std::byte> part) { state.insert(state.end(), part.begin(), part.end()); });
    loaded.load_state(0, *engine::state_in_memory(state));
    for (Token token : {7, 300, 45, 8}) {
      std::vector<float> logits[2];
      for (int i = 0; i < 2; ++i)
        (i ? loaded : s).append(0, std::span(&token, 1), Want::kLast, [&](int, std::span<const float> l) {
          logits[i].assign(l.begin(), l.end());
        });
      ASSERT_EQ(logits[0].size(), logits[1].size());
      EXPECT_EQ(0, std::memcmp(logits[0].data(), logits[1].data(), logits[0].size() * sizeof(float)))
          << formats::require(type).name;
    }
  }
}

TEST(CudaTiny, SavedStatesGoToTheDeviceAndBack) {
  KVASIR_NEEDS_CUDA();
  const auto host = load("tiny-gemma4-q8_0.gguf", "cpu"), device = load("tiny-gemma4-q8_0.gguf", "cuda");
  auto ids = reference().array<Token>("long.ids");
  ids.resize(150);
  std::vector<std::pair<DType, DType>> pairs{{DType::qjl1_256, DType::q4_polar}};
  for (const DType type : both_roles()) pairs.push_back({type, type});
  for (const auto& [k, v] : pairs) {
    auto options = session_options(k);
    options.kv.v = v;
    Session first(host, options), between(device, options), last(host, options);
    first.append(0, ids, Want::kNone, nullptr);
    const std::vector<std::byte> state = state_of(first);
    between.load_state(0, *engine::state_in_memory(state));
    const std::vector<std::byte> back = state_of(between);
    EXPECT_TRUE(state == back) << formats::require(k).name
                               << ": a state changed on its way through the device";
    last.load_state(0, *engine::state_in_memory(back));
    for (const Token token : {7, 300}) {
      const std::vector<float> a = next_logits(first, token), b = next_logits(last, token),
                               c = next_logits(between, token);
      EXPECT_TRUE(a == b) << formats::require(k).name;
      double worst = 0;
      for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(double(a[i]) - double(c[i])));
      EXPECT_LE(worst, 1.0) << formats::require(k).name << ": the device goes on with other logits";
    }
  }
}

TEST(CudaTiny, TwentyRepeatsAreIdentical) {
  KVASIR_NEEDS_CUDA();
  const auto model = load("tiny-gemma4-q8_0.gguf", "cuda");
  const auto ids = reference().array<Token>("medium.ids");
  std::vector<float> first;
  for (int i = 0; i < 20; ++i) {
    Session s(model, session_options(DType::q8_0));
    s.append(0, ids, Want::kLast, [](int, std::span<const float>) {});
    std::vector<float> last;
    for (int t = 0; t < 8; ++t)
      s.append(0, std::vector<Token>{Token(100 + t)}, Want::kLast, [&](int, std::span<const float> logits) {
        last.insert(last.end(), logits.begin(), logits.end());
      });
    if (i == 0)
      first = last;
    else
      ASSERT_EQ(0, std::memcmp(first.data(), last.data(), last.size() * sizeof(float))) << "repeat " << i;
  }
}

}  // namespace
}  // namespace kvasir::test
