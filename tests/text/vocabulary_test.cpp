// Vocabularies that contradict themselves are refused with a message that says where; odd but harmless ones
// work.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "base/error.h"
#include "text/small_vocabulary.h"

namespace kvasir::text {
namespace {

void expect_bad(const Vocabulary& vocabulary, std::string_view part) {
  try {
    Tokenizer::create(vocabulary);
    FAIL() << "accepted; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

SmallVocabulary letters(TokenizerKind kind) {
  SmallVocabulary small(kind);
  for (const char* text : {"a", "b", "\u2581"}) small.add(text);
  small.add("ab", TokenType::normal, -1);
  small.merge("a b");
  return small;
}

TEST(Vocabulary, NeedsTokensScoresAndMerges) {
  expect_bad({}, "no tokens");
  auto spm = letters(TokenizerKind::kSpm);
  spm.vocabulary.scores.pop_back();
  expect_bad(spm.vocabulary, "263 scores for 264 tokens");
  auto bpe = letters(TokenizerKind::kBpe);
  bpe.vocabulary.types.pop_back();
  expect_bad(bpe.vocabulary, "263 token types for 264 tokens");
  bpe = letters(TokenizerKind::kBpe);
  bpe.vocabulary.merges.clear();
  expect_bad(bpe.vocabulary, "no merges");
}

TEST(Vocabulary, ChecksIds) {
  auto small = letters(TokenizerKind::kSpm);
  small.vocabulary.eos = 264;
  expect_bad(small.vocabulary, "eos token id is 264; there are 264 tokens");
  small.vocabulary.eos = -2;
  expect_bad(small.vocabulary, "eos token id is -2");
  small.vocabulary.eos = 1;
  small.vocabulary.bos = std::numeric_limits<Token>::max();
  expect_bad(small.vocabulary, "bos token id is 2147483647");
}

TEST(Vocabulary, ChecksMerges) {
  for (const auto& [merge, part] : {std::pair{"a c", "merge 1 ('a c') needs 'c', which is not a token"},
                                    {"c a", "needs 'c'"},
                                    {"b a", "needs 'ba'"},
                                    {"ab", "expected two tokens with a space between them"},
                                    {"a ", "expected two tokens"},
                                    {"", "expected two tokens"},
                                    {" ", "expected two tokens"},
                                    {"\n\x01 b", "'\\x0A\\x01 b'"}}) {
    auto small = letters(TokenizerKind::kBpe);
    small.merge(merge);
    expect_bad(small.vocabulary, part);
  }
}

TEST(Vocabulary, ChecksTypesAndScores) {
  auto small = letters(TokenizerKind::kSpm);
  small.vocabulary.types[5] = static_cast<TokenType>(9);
  expect_bad(small.vocabulary, "token 5 ('<0x01>') has type 9");
  small = letters(TokenizerKind::kSpm);
  small.vocabulary.types[260] = TokenType::byte;
  expect_bad(small.vocabulary, "token 260 is of type byte but reads 'a'");
  small = letters(TokenizerKind::kSpm);
  small.vocabulary.scores[261] = std::numeric_limits<float>::quiet_NaN();
  expect_bad(small.vocabulary, "score of token 261 is not a number");
}

TEST(Vocabulary, ByteTokensMayBeMissingWhenThereIsAnUnknownToken) {
  auto small = letters(TokenizerKind::kSpm);
  small.vocabulary.types[4 + 0xE6] = TokenType::normal;  // first byte of U+65E5
  const auto tokenizer = Tokenizer::create(small.vocabulary);
  EXPECT_EQ(tokenizer->encode("a\u65E5b", false), (std::vector<Token>{260, 3, 261}));
  EXPECT_EQ(tokenizer->encode("\u00E9", false), (std::vector<Token>{4 + 0xC3, 4 + 0xA9}));
  small.vocabulary.unk = -1;
  expect_bad(small.vocabulary, "no byte token <0xE6> and no unknown token");
}

TEST(Vocabulary, TheFirstOfEqualTokensCountsAndEmptyOnesAreIgnored) {
  for (const TokenizerKind kind : {TokenizerKind::kSpm, TokenizerKind::kBpe}) {
    auto small = letters(kind);
    const Token again = small.add("ab", TokenType::normal, 5);
    const Token empty = small.add("");
    const Token empty_special = small.add("", TokenType::user_defined);
    const auto tokenizer = Tokenizer::create(small.vocabulary);
    EXPECT_EQ(tokenizer->encode("ab ba", true), (std::vector<Token>{263, 262, 261, 260}));
    EXPECT_EQ(tokenizer->piece(again), "ab");
    EXPECT_EQ(tokenizer->piece(empty), "");
    EXPECT_EQ(tokenizer->piece(empty_special), "");
  }
}

TEST(Vocabulary, TextThatSpellsAControlTokenIsNeverMergedIntoIt) {
  auto small = letters(TokenizerKind::kSpm);
  small.add("aa", TokenType::control, 100);
  const auto tokenizer = Tokenizer::create(small.vocabulary);
  EXPECT_EQ(tokenizer->encode("aa", false), (std::vector<Token>{260, 260}));
  EXPECT_EQ(tokenizer->encode("aa", true), (std::vector<Token>{264}));
  EXPECT_EQ(tokenizer->encode("<0x41>", true).size(), 6u);
}

TEST(Vocabulary, WithoutTypesAllTokensAreNormalAndBytesAreKnownByTheirText) {
  auto small = letters(TokenizerKind::kSpm);
  small.vocabulary.types.clear();
  const auto tokenizer = Tokenizer::create(small.vocabulary);
  EXPECT_EQ(tokenizer->encode("ab\n", false), (std::vector<Token>{263, 4 + '\n'}));
  EXPECT_EQ(tokenizer->piece(4 + '\n'), "\n");
}

TEST(Vocabulary, UserDefinedTokensMatchLongestFirst) {
  auto small = letters(TokenizerKind::kSpm);
  const Token two = small.add("bb", TokenType::user_defined),
              four = small.add("bbba", TokenType::user_defined);
  const Token spaces = small.add("  ", TokenType::user_defined);
  const auto tokenizer = Tokenizer::create(small.vocabulary);
  EXPECT_EQ(tokenizer->encode("bbb", false), (std::vector<Token>{two, 261}));
  EXPECT_EQ(tokenizer->encode("bbbab", false), (std::vector<Token>{four, 261}));
  EXPECT_EQ(tokenizer->encode("a   b", false), (std::vector<Token>{260, spaces, 262, 261}));
  EXPECT_EQ(tokenizer->encode("a\u2581\u2581b", false), (std::vector<Token>{260, spaces, 261}));
}

TEST(Vocabulary, EndIdsNeverHoldTheHtmlTag) {
  auto small = letters(TokenizerKind::kSpm);
  small.add("</s>", TokenType::user_defined);
  const Token turn = small.add("<end_of_turn>", TokenType::control);
  small.add("<turn|>");  // plain text in this vocabulary
  EXPECT_EQ(Tokenizer::create(small.vocabulary)->end_ids(), (std::vector<Token>{1, turn}));
  small.vocabulary.eos = turn;  // files whose eos key names the turn's end
  EXPECT_EQ(Tokenizer::create(small.vocabulary)->end_ids(), (std::vector<Token>{1, turn}));
}

TEST(Vocabulary, Gemma4AlwaysAddsBosAndShowsItsChannelMarks) {
  auto small = letters(TokenizerKind::kBpe);
  small.vocabulary.add_bos = false;
  const Token channel = small.add("<|channel>", TokenType::control);
  const auto tokenizer = Tokenizer::create(small.vocabulary);
  EXPECT_TRUE(tokenizer->add_bos());
  EXPECT_EQ(tokenizer->piece(channel), "<|channel>");
  small.vocabulary.kind = TokenizerKind::kSpm;
  EXPECT_FALSE(Tokenizer::create(small.vocabulary)->add_bos());
}

// Whatever the bytes of a vocabulary are, loading it and using it ends in a result or an Error.
TEST(Vocabulary, RandomVocabulariesNeverCrash) {
  std::mt19937 random(99);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const auto bytes = [&](uint32_t longest) {
    std::string out;
    for (uint32_t n = below(longest); n > 0; --n) out += "ab \n\xE2\x96\x81\xC3\xA9\xFF<>"[below(12)];
    return out;
  };
  int loaded = 0;
  for (int round = 0; round < 2000; ++round) {
    SmallVocabulary small(below(2) ? TokenizerKind::kBpe : TokenizerKind::kSpm);
    for (uint32_t n = below(30); n > 0; --n) {
      small.add(bytes(6), static_cast<TokenType>(below(200) ? 1 + below(5) : below(9)),
                static_cast<float>(below(4)));
    }
    const auto& tokens = small.vocabulary.tokens;
    for (uint32_t n = 1 + below(3); n > 0; --n) {
      const std::string left(tokens[below(static_cast<uint32_t>(tokens.size()))]);
      const std::string right(tokens[below(static_cast<uint32_t>(tokens.size()))]);
      if (below(4)) small.add(left + right);
      small.merge(left + (below(20) ? " " : "") + right);
    }
    small.vocabulary.eos = static_cast<Token>(below(320)) - 5;
    try {
      const auto tokenizer = Tokenizer::create(small.vocabulary);
      ++loaded;
      for (int i = 0; i < 10; ++i) {
        try {
          const std::vector<Token> ids = tokenizer->encode(bytes(400), i % 2 == 0);
          StreamDecoder stream(*tokenizer, true);
          for (const Token id : ids) stream.push(id);
          stream.finish();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kUsage) << error.what();
        }
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadFile) << error.what();
    }
  }
  EXPECT_GT(loaded, 300);
}

}  // namespace
}  // namespace kvasir::text
