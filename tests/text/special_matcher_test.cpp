#include "text/special_matcher.h"

#include <gtest/gtest.h>

namespace kvasir::text {
namespace {

TEST(SpecialMatcher, TakesTheLongestThatIsAllowed) {
  const SpecialMatcher matcher(
      {{"<a>", 1, true}, {"<ab", 2, false}, {"<ab>", 3, true}, {"\n", 4, false}, {"\n\n", 5, false}});
  const auto at = [&](std::string_view text, bool control) {
    const auto match = matcher.longest(text, control);
    return std::pair(match.id, match.length);
  };
  using Result = std::pair<Token, size_t>;
  EXPECT_EQ(at("<ab>x", true), Result(3, 4));
  EXPECT_EQ(at("<ab>x", false), Result(2, 3));
  EXPECT_EQ(at("<a>", true), Result(1, 3));
  EXPECT_EQ(at("<a>", false), Result(-1, 0));
  EXPECT_EQ(at("<a", true), Result(-1, 0));
  EXPECT_EQ(at("", true), Result(-1, 0));
  EXPECT_EQ(at("\n\n\n", false), Result(5, 2));
  EXPECT_TRUE(matcher.may_start('<'));
  EXPECT_FALSE(matcher.may_start('a'));
}

TEST(SpecialMatcher, TheFirstOfEqualTextsCounts) {
  const SpecialMatcher matcher({{"xy", 7, false}, {"", 1, false}, {"xy", 3, true}});
  EXPECT_EQ(matcher.longest("xyz", false).id, 7);
}

TEST(SpecialMatcher, EmptyMatchesNothing) {
  EXPECT_FALSE(SpecialMatcher().may_start('a'));
  EXPECT_EQ(SpecialMatcher().longest("a", true).id, -1);
  EXPECT_EQ(SpecialMatcher(std::vector<SpecialMatcher::Entry>()).longest("a", true).id, -1);
}

}  // namespace
}  // namespace kvasir::text
