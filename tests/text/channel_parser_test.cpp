#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "text/chat_template.h"

namespace kvasir::text {
namespace {

struct Parsed {
  std::string thought, answer;
  bool operator==(const Parsed&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Parsed& p) {
  return out << '[' << p.thought << "] [" << p.answer << ']';
}

// Cuts the text into parts of the given size, 0: one part.
Parsed parse(std::string_view text, size_t part) {
  ChannelParser parser;
  Parsed out;
  const auto take = [&](const std::vector<ChannelParser::Piece>& pieces) {
    for (const auto& piece : pieces) {
      EXPECT_FALSE(piece.text.empty());
      (piece.thought ? out.thought : out.answer) += piece.text;
    }
  };
  for (size_t at = 0; at < text.size(); at += part == 0 ? text.size() : part) {
    take(parser.push(text.substr(at, part == 0 ? text.size() : part)));
  }
  take(parser.finish());
  return out;
}

TEST(ChannelParser, SplitsWhateverThePartsAre) {
  const struct {
    const char* text;
    Parsed expected;
  } cases[] = {
      {"", {"", ""}},
      {"plain answer", {"", "plain answer"}},
      {"<|channel>thought\nhmm\n<channel|>Yes.", {"hmm", "Yes."}},
      {"<|channel>thought\na\n\nb\n\n<channel|>\nYes.", {"a\n\nb", "\nYes."}},
      {"<|channel>thought\n<channel|>Yes.", {"", "Yes."}},  // empty
      {"<|channel>thought<channel|>Yes.", {"", "Yes."}},    // without its newline
      {"<|channel><channel|>Yes.", {"", "Yes."}},           // without a name
      {"<|channel>hmm<channel|>Yes.", {"hmm", "Yes."}},
      {"<|channel>thoughtful<channel|>Yes.", {"thoughtful", "Yes."}},                      // no name either
      {"<|channel>thought\na<channel|><|channel>thought\n<channel|>Yes.", {"a", "Yes."}},  // extra channel
      {"Yes.<channel|>", {"", "Yes."}},                                                    // stray mark
      {"<channel|><channel|>Yes<channel|>.", {"", "Yes."}},
      {"Yes.<|channel>thought\nb<channel|> No.", {"b", "Yes. No."}},
      {"<|channel>thought\na<|channel>thought\nb<channel|>Yes.", {"ab", "Yes."}},  // opened twice
      {"<|channel>thought\nnever closed\n", {"never closed", ""}},
      {"<|channel>thou", {"thou", ""}},
      {"<|channel>thought", {"", ""}},
      {"a <|chan", {"", "a <|chan"}},  // the start of a mark, but no mark
      {"1 < 2 <| 3 <c 4", {"", "1 < 2 <| 3 <c 4"}},
      {"<<|channel>thought\na<<channel|>b", {"a<", "<b"}},
  };
  for (const auto& [text, expected] : cases) {
    for (size_t part = 0; part < 12; ++part)
      EXPECT_EQ(parse(text, part), expected) << text << " in parts of " << part;
  }
}

TEST(ChannelParser, HoldsBackNoMoreThanAPossibleMark) {
  ChannelParser parser;
  auto pieces = parser.push("Hello <");
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].text, "Hello ");
  pieces = parser.push("b");
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].text, "<b");
  EXPECT_TRUE(parser.push("<|channel>thought").empty());
  pieces = parser.push("\nWell");
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_TRUE(pieces[0].thought);
  EXPECT_EQ(pieces[0].text, "Well");
  pieces = parser.push("<channel|>Yes");
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_FALSE(pieces[0].thought);
}

TEST(ChannelParser, RandomSoupIsTheSameInAnyParts) {
  std::mt19937 random(5);
  const char* bits[] = {"<|channel>", "<channel|>", "thought", "thought\n", "\n", "<",
                        "<|",         "channel",    "|>",      "a",         " b "};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (uint32_t n = random() % 12; n > 0; --n) text += bits[random() % std::size(bits)];
    const Parsed whole = parse(text, 0);
    for (const size_t part : {1, 2, 3, 7}) ASSERT_EQ(parse(text, part), whole) << text;
  }
}

}  // namespace
}  // namespace kvasir::text
