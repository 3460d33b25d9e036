// The Gemma 4 tokenizer on the embedded model's vocabulary, and both kinds on made-up ones.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "text/gguf_vocabulary.h"
#include "text/naive_tokenizer.h"
#include "text/random_text.h"
#include "text/small_vocabulary.h"

namespace kvasir::text {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class TinyTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    loaded_ = new FileVocabulary(load_vocabulary(tiny_gemma4_path()));
    tokenizer_ = Tokenizer::create(loaded_->vocabulary).release();
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    delete loaded_;
  }
  static inline FileVocabulary* loaded_;
  static inline Tokenizer* tokenizer_;
};

TEST_F(TinyTest, GivesTheReferenceIdsAndText) {
  const auto reference = nlohmann::json::parse(read_file(KVASIR_SOURCE_DIR "/models/reference.json"));
  ASSERT_EQ(reference["tokenize"].size(), 20u);
  for (const auto& sample : reference["tokenize"]) {
    const auto text = sample["text"].get<std::string>();
    const std::vector<Token> ids = tokenizer_->encode(text, true);
    EXPECT_EQ(ids, sample["ids"].get<std::vector<Token>>()) << text;
    EXPECT_EQ(tokenizer_->decode(ids, true), sample["decoded"].get<std::string>()) << text;
  }
}

TEST_F(TinyTest, GivesTheReferenceTokenCountOfTheValidationText) {
  const std::string text = read_file(KVASIR_SOURCE_DIR "/models/val.txt");
  const std::vector<Token> ids = tokenizer_->encode(text, true);
  EXPECT_EQ(ids.size() + 1, 55028u);  // the reference counts <bos>
  EXPECT_EQ(tokenizer_->decode(ids), text);
}

TEST_F(TinyTest, KnowsItsSpecialTokens) {
  EXPECT_EQ(tokenizer_->size(), 4096);
  EXPECT_EQ(tokenizer_->bos(), 2);
  EXPECT_EQ(tokenizer_->eos(), 1);
  EXPECT_TRUE(tokenizer_->add_bos());
  EXPECT_EQ(tokenizer_->find("<|turn>"), 105);
  EXPECT_EQ(tokenizer_->find("no such token"), -1);
  EXPECT_EQ(tokenizer_->find(""), -1);
  EXPECT_EQ(tokenizer_->find("  "), tokenizer_->find("\u2581\u2581"));
  EXPECT_EQ(tokenizer_->end_ids(), (std::vector<Token>{1, 50, 106}));  // <eos> <|tool_response> <turn|>
  EXPECT_TRUE(tokenizer_->is_end(106));
  EXPECT_FALSE(tokenizer_->is_end(105));
}

TEST_F(TinyTest, ControlTokensInTextStayTextUnlessAskedFor) {
  const std::vector<Token> ids = tokenizer_->encode("<|turn>user<turn|>", false);
  EXPECT_EQ(tokenizer_->decode(ids), "<|turn>user<turn|>");
  for (const Token id : ids) EXPECT_GT(id, 106);
  EXPECT_EQ(tokenizer_->encode("<|channel>", false), std::vector<Token>{100});  // user-defined
  EXPECT_EQ(tokenizer_->piece(100), "<|channel>");
  EXPECT_EQ(tokenizer_->piece(105), "");
  EXPECT_EQ(tokenizer_->piece(105, true), "<|turn>");
}

TEST_F(TinyTest, NewlineRunsAreOneTokenAndKeepApart) {
  for (size_t n = 1; n <= 16; ++n) {
    EXPECT_EQ(tokenizer_->encode(std::string(n, '\n'), false),
              std::vector<Token>{static_cast<Token>(106 + n)});
  }
  const std::vector<Token> ids = tokenizer_->encode("a\n\nb", false);
  EXPECT_EQ(ids, (std::vector<Token>{459, 108, 460}));
}

TEST_F(TinyTest, FastAndNaiveAgreeAndRoundTrip) {
  const NaiveTokenizer naive(loaded_->vocabulary);
  std::mt19937 random(20261129);
  const std::vector<std::string> snippets = {"<|turn>",
                                             "<turn|>",
                                             "<bos>",
                                             "<|channel>thought\n",
                                             "<channel|>",
                                             "<0x41>",
                                             "Captain Wentworth ",
                                             "<|\"|>",
                                             "<unused3",
                                             " that the ",
                                             "<|turn",
                                             "\r\n\t"};
  for (int i = 0; i < 1000; ++i) {
    const std::string text = random_text(random, snippets);
    const bool special = i % 2 == 0;
    const std::vector<Token> ids = tokenizer_->encode(text, special);
    ASSERT_EQ(ids, naive.encode(text, special)) << text;
    std::string canonical;
    for (size_t at = 0; at < text.size();) {
      const bool mark = text.compare(at, 3, "\u2581") == 0;
      canonical += mark ? ' ' : text[at];
      at += mark ? 3 : 1;
    }
    ASSERT_EQ(tokenizer_->decode(ids, true), canonical);
    StreamDecoder stream(*tokenizer_, true);
    std::string streamed;
    for (const Token id : ids) streamed += stream.push(id);
    ASSERT_EQ(streamed + stream.finish(), canonical);
  }
}

// The word cache and the cuts must not show: a long text equals its parts only if nothing was remembered
// wrongly.
TEST_F(TinyTest, LongTextsEqualTheNaiveResult) {
  const NaiveTokenizer naive(loaded_->vocabulary);
  const std::string text = read_file(KVASIR_SOURCE_DIR "/models/val.txt");
  for (size_t line = 0, at = 0; at < text.size(); ++line) {
    const size_t end = std::min(text.find("\n\n", at), text.size() - 2) + 2;
    const std::string paragraph = text.substr(at, end - at);
    if (line % 24 == 0 && paragraph.size() < 3000) {
      ASSERT_EQ(tokenizer_->encode(paragraph, false), naive.encode(paragraph, false)) << paragraph;
    }
    at = end;
  }
}

TEST_F(TinyTest, InvalidTextNamesTheByte) {
  try {
    tokenizer_->encode("good so far \xC3(", false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("byte 0xC3 at offset 12"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(tokenizer_->encode("", true).empty());
}

TEST_F(TinyTest, UnknownIdsAreRefused) {
  for (const Token id : {-1, 4096, INT32_MAX, INT32_MIN}) {
    try {
      tokenizer_->piece(id);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_NE(std::string(error.what()).find("0..4095"), std::string::npos) << error.what();
    }
  }
}

// A chunk of one repeated letter cannot be cut, so it takes the heap; quadratic behaviour would take minutes
// here.
TEST_F(TinyTest, OneLongWordStaysFast) {
  const std::string text(1 << 20, 'e');
  const std::vector<Token> ids = tokenizer_->encode(text, false);
  EXPECT_EQ(tokenizer_->decode(ids), text);
  const NaiveTokenizer naive(loaded_->vocabulary);
  const std::string shorter = std::string(300, 'e') + "th" + std::string(301, 'l') + std::string(77, '-');
  EXPECT_EQ(tokenizer_->encode(shorter, false), naive.encode(shorter, false));
}

// Random vocabularies over two letters and the space: many ties, many ways to build one token, chains that
// only some orders reach.
TEST(TokenizerFuzz, RandomVocabulariesEqualTheNaiveResult) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const auto word = [&](uint32_t longest) {
    std::string out;
    for (uint32_t n = 1 + below(longest); n > 0; --n)
      out += std::array{"a", "b", "\u2581", "\n", "\u00E9"}[below(5)];
    return out;
  };
  for (int round = 0; round < 300; ++round) {
    const bool bpe = round % 2 == 0;
    SmallVocabulary small(bpe ? TokenizerKind::kBpe : TokenizerKind::kSpm);
    std::vector<std::string> words;
    for (const char* c : {"a", "b", "\u2581", "\n"}) words.push_back(c);
    for (uint32_t n = below(25); n > 0; --n) words.push_back(word(5));
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    for (const std::string& w : words) {
      const bool single = w.size() == 1;
      small.add(w, !single && below(8) == 0 ? TokenType::user_defined : TokenType::normal,
                -static_cast<float>(below(6)));
    }
    std::vector<std::string> merges;
    for (const std::string& a : words) {
      for (const std::string& b : words) {
        if (std::binary_search(words.begin(), words.end(), a + b)) merges.push_back(a + ' ' + b);
      }
    }
    std::shuffle(merges.begin(), merges.end(), random);
    if (bpe && merges.empty()) continue;
    if (bpe) {
      for (const std::string& merge : merges) small.merge(merge);
    }
    const auto tokenizer = Tokenizer::create(small.vocabulary);
    const NaiveTokenizer naive(small.vocabulary);
    for (int i = 0; i < 20; ++i) {
      std::string text = word(i < 15 ? 30 : 400);
      ASSERT_EQ(tokenizer->encode(text, i % 2 == 0), naive.encode(text, i % 2 == 0)) << round << ": " << text;
    }
  }
}

}  // namespace
}  // namespace kvasir::text
