#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "text/quote.h"
#include "text/small_vocabulary.h"

namespace kvasir::text {
namespace {

constexpr size_t kNone = std::string_view::npos;

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(""), kNone);
  EXPECT_EQ(find_invalid_utf8("plain ASCII that is longer than one word of eight bytes"), kNone);
  EXPECT_EQ(find_invalid_utf8(
                "\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF"),
            kNone);
  EXPECT_EQ(find_invalid_utf8("0123456789\x80"), 10u);
  EXPECT_EQ(find_invalid_utf8("ab\xC0\xAF"), 2u);          // overlong /
  EXPECT_EQ(find_invalid_utf8("ab\xE0\x9F\xBF"), 2u);      // overlong
  EXPECT_EQ(find_invalid_utf8("ab\xED\xA0\x80"), 2u);      // surrogate
  EXPECT_EQ(find_invalid_utf8("ab\xF0\x8F\xBF\xBF"), 2u);  // overlong
  EXPECT_EQ(find_invalid_utf8("ab\xF4\x90\x80\x80"), 2u);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("ab\xF5"), 2u);
  EXPECT_EQ(find_invalid_utf8("abc\xE2\x96"), 3u);  // cut short
  EXPECT_EQ(find_invalid_utf8("abc\xE2\x96z"), 3u);
}

// Every sequence of up to three bytes against the bit arithmetic of the definition.
TEST(Utf8, AgreesWithTheDefinitionOnShortSequences) {
  const auto valid = [](const unsigned char* s, int n) {
    if (n == 1) return s[0] < 0x80;
    if (n == 2)
      return (s[0] & 0xE0) == 0xC0 && (s[1] & 0xC0) == 0x80 && ((s[0] & 31) << 6 | (s[1] & 63)) >= 0x80;
    const int c = (s[0] & 15) << 12 | (s[1] & 63) << 6 | (s[2] & 63);
    return (s[0] & 0xF0) == 0xE0 && (s[1] & 0xC0) == 0x80 && (s[2] & 0xC0) == 0x80 && c >= 0x800 &&
           (c < 0xD800 || c > 0xDFFF);
  };
  unsigned char s[3];
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      for (int c = 0; c < 256; c += 5) {
        s[0] = static_cast<unsigned char>(a), s[1] = static_cast<unsigned char>(b),
        s[2] = static_cast<unsigned char>(c);
        const Utf8Unit unit = utf8_unit({reinterpret_cast<const char*>(s), 3}, 0);
        bool any = false;
        for (int n = 1; n <= 3; ++n) {
          if (!valid(s, n)) continue;
          any = true;
          ASSERT_EQ(unit.status, Utf8Status::kComplete) << a << ' ' << b << ' ' << c;
          ASSERT_EQ(unit.length, n) << a << ' ' << b << ' ' << c;
        }
        if (!any) {
          ASSERT_NE(unit.status, Utf8Status::kComplete) << a << ' ' << b << ' ' << c;
        }
      }
    }
  }
}

TEST(Quote, EscapesAndCuts) {
  EXPECT_EQ(quote("a\nb\xFF"), "'a\\x0Ab\\xFF'");
  EXPECT_EQ(quote("\u65E5"), "'\u65E5'");
  EXPECT_EQ(quote(std::string(50, 'x')), "'" + std::string(40, 'x') + "...'");
}

class StreamTest : public testing::Test {
 protected:
  StreamTest() : small_(TokenizerKind::kSpm) {
    hello_ = small_.add("hello");
    tokenizer_ = Tokenizer::create(small_.vocabulary);
  }
  static Token byte(int value) { return 4 + value; }

  SmallVocabulary small_;
  Token hello_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(StreamTest, HoldsBackUnfinishedCharacters) {
  StreamDecoder stream(*tokenizer_);
  EXPECT_EQ(stream.push(hello_), "hello");
  EXPECT_EQ(stream.push(byte(0xF0)), "");
  EXPECT_EQ(stream.push(byte(0x9F)), "");
  EXPECT_EQ(stream.push(byte(0xA6)), "");
  EXPECT_EQ(stream.push(byte(0x99)), "\U0001F999");
  EXPECT_EQ(stream.push(hello_), "hello");
  EXPECT_EQ(stream.finish(), "");
}

TEST_F(StreamTest, ReplacesBytesThatCannotBecomeACharacter) {
  StreamDecoder stream(*tokenizer_);
  EXPECT_EQ(stream.push(byte(0x80)), "\uFFFD");
  EXPECT_EQ(stream.push(byte(0xE2)), "");
  EXPECT_EQ(stream.push(byte(0x96)), "");
  EXPECT_EQ(stream.push(hello_), "\uFFFDhello");  // one mark for the part that was on its way
  EXPECT_EQ(stream.push(byte(0xE2)), "");
  EXPECT_EQ(stream.push(byte(0xE2)), "\uFFFD");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST_F(StreamTest, ShowsControlTokensOnlyWhenAsked) {
  EXPECT_EQ(StreamDecoder(*tokenizer_).push(1), "");
  EXPECT_EQ(StreamDecoder(*tokenizer_, true).push(1), "<eos>");
}

}  // namespace
}  // namespace kvasir::text
