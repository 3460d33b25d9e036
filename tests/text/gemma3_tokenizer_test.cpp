// The Gemma 3 tokenizer on the vocabulary of the real 270M file, and a Gemma 4 style merge list derived from
// it.
#include <gtest/gtest.h>

#include <deque>
#include <fstream>
#include <sstream>
#include <unordered_map>

#include "text/gguf_vocabulary.h"
#include "text/naive_tokenizer.h"
#include "text/random_text.h"

namespace kvasir::text {
namespace {

class Gemma3Test : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string path = gemma3_270m_path();
    if (path.empty()) return;
    loaded_ = new FileVocabulary(load_vocabulary(path));
    tokenizer_ = Tokenizer::create(loaded_->vocabulary).release();
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    delete loaded_;
  }
  void SetUp() override {
    if (tokenizer_ == nullptr) {
      GTEST_SKIP() << "no Gemma 3 270M file; set KVASIR_TEST_GEMMA3_270M or put it under ~/.cache/kvasir";
    }
  }
  static inline FileVocabulary* loaded_ = nullptr;
  static inline Tokenizer* tokenizer_ = nullptr;
};

TEST_F(Gemma3Test, GivesTheGoldenIds) {
  const struct {
    const char* text;
    std::vector<Token> ids;
  } golden[] = {
      {"Hello world!", {9259, 1902, 236888}},
      {" Hello", {26352}},
      {"Hello", {9259}},
      {"The capital of France is", {818, 5279, 529, 7001, 563}},
      {"a  b", {236746, 138, 236763}},
      {"a   b\n\n\nc", {236746, 139, 236763, 109, 236755}},
      {"\n \n\n x\ty", {107, 236743, 108, 1123, 255968, 236762}},
      {"\u65E5\u672C\u8A9E\u30C6\u30B9\u30C8", {94951, 88733}},
      {"\U0001F999\U0001F9FF\U000103A0", {478, 397, 404, 391, 248979, 478, 382, 380, 398}},
      {"don't 12345 x=1;\n    return 0;",
       {13246, 236789, 236745, 236743, 236770, 236778, 236800, 236812, 236810, 1123, 236784, 236770, 236793,
        107, 140, 2060, 236743, 236771, 236793}},
      {"<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
       {105, 2364, 107, 10979, 106, 107, 105, 4368, 107}},
      {"<b>hi</s>", {200, 2202, 212}},
  };
  for (const auto& [text, ids] : golden) {
    EXPECT_EQ(tokenizer_->encode(text, true), ids) << text;
    EXPECT_EQ(tokenizer_->decode(ids, true), text);
  }
}

TEST_F(Gemma3Test, KnowsItsSpecialTokens) {
  EXPECT_EQ(tokenizer_->size(), 262144);
  EXPECT_EQ(tokenizer_->bos(), 2);
  EXPECT_TRUE(tokenizer_->add_bos());
  EXPECT_EQ(tokenizer_->end_ids(), (std::vector<Token>{1, 106}));
  EXPECT_FALSE(tokenizer_->is_end(tokenizer_->find("</s>")));
  EXPECT_EQ(tokenizer_->find("</s>"), 212);
}

TEST_F(Gemma3Test, UserDefinedTokensAlwaysMatchAndControlOnesOnlyWhenAsked) {
  EXPECT_EQ(tokenizer_->encode("<b>", false), std::vector<Token>{200});
  EXPECT_GT(tokenizer_->encode("<end_of_turn>", false).size(), 1u);
  EXPECT_EQ(tokenizer_->encode(std::string(40, ' '), false),
            (std::vector<Token>{167, 145}));  // 31 + 9 spaces
  EXPECT_EQ(tokenizer_->encode(std::string(40, '\n'), false), (std::vector<Token>{137, 115}));
  EXPECT_EQ(tokenizer_->encode("a\u2581\u2581b", false), tokenizer_->encode("a  b", false));
}

TEST_F(Gemma3Test, FastAndNaiveAgreeAndRoundTrip) {
  const NaiveTokenizer naive(loaded_->vocabulary);
  std::mt19937 random(270);
  const std::vector<std::string> snippets = {"<start_of_turn>",
                                             "<end_of_turn>",
                                             "<b>",
                                             "</s>",
                                             "<unused3",
                                             " http://www.",
                                             "> </",
                                             "internationalization ",
                                             "<0x41>",
                                             "\t\t\t",
                                             "def f(x):\n    return"};
  for (int i = 0; i < 1000; ++i) {
    const std::string text = random_text(random, snippets);
    const bool special = i % 2 == 0;
    const std::vector<Token> ids = tokenizer_->encode(text, special);
    ASSERT_EQ(ids, naive.encode(text, special)) << text;
    std::string canonical = text;
    for (size_t at; (at = canonical.find("\u2581")) != std::string::npos;) canonical.replace(at, 3, " ");
    ASSERT_EQ(tokenizer_->decode(ids, true), canonical);
  }
}

// Every split of every token into two tokens, best token first: the merge list that equals the scores.
TEST_F(Gemma3Test, MergeRanksDerivedFromScoresGiveTheSameIds) {
  Vocabulary bpe = loaded_->vocabulary;
  bpe.kind = TokenizerKind::kBpe;
  std::unordered_map<std::string_view, Token> ids;
  std::vector<Token> order;
  for (Token id = 0; id < static_cast<Token>(bpe.tokens.size()); ++id) {
    if (bpe.types[id] != TokenType::normal) continue;
    ids.emplace(bpe.tokens[id], id);
    order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](Token a, Token b) { return bpe.scores[a] > bpe.scores[b]; });
  std::deque<std::string> texts;
  for (const Token id : order) {
    const std::string_view text = bpe.tokens[id];
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if (!ids.contains(text.substr(0, cut)) || !ids.contains(text.substr(cut))) continue;
      bpe.merges.push_back(
          texts.emplace_back(std::string(text.substr(0, cut)) + ' ' + std::string(text.substr(cut))));
    }
  }
  EXPECT_GT(bpe.merges.size(), 400000u);
  const auto tokenizer = Tokenizer::create(bpe);
  std::ifstream in(KVASIR_SOURCE_DIR "/models/val.txt", std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  const std::vector<Token> expected = tokenizer_->encode(text.str(), true);
  EXPECT_EQ(tokenizer->encode(text.str(), true), expected);
  EXPECT_EQ(tokenizer_->decode(expected), text.str());
}

}  // namespace
}  // namespace kvasir::text
